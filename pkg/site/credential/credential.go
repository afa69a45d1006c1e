package credential

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// maxText bounds a file, bytes.
const maxText = 256 << 10

// Credential is what a file of the Secret names: the API server of a site, its CA, a token, and the
// namespace that the token may read.
type Credential struct {
	// Config connects to the API server with the token. It bounds each answer and logs no warnings
	// of the server. The caller may set a timeout.
	Config *rest.Config
	// Namespace has the SiteRecords for this cluster.
	Namespace string
	// Ends is when the token ends. It is zero if the token does not say.
	Ends time.Time
	text string
}

// Equal reports whether both were read from the same text. No credential equals nil.
func (c *Credential) Equal(other *Credential) bool { return other != nil && c.text == other.text }

// Read reads the credential for a site from the file with its name in the folder. Its errors have
// no part of the file.
func Read(folder, site string) (*Credential, error) {
	f, err := os.Open(filepath.Join(folder, site))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there are no credentials for site %s: put a kubeconfig under the "+
			"key %s into the Secret kube-system/veil-site", site, site)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err != nil {
		return nil, err
	}
	c, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("credentials for site %s: %w", site, err)
	}
	return c, nil
}

// parse parses a kubeconfig that has everything in itself. It refuses what would read files, run
// programs, or trust a server without its CA.
func parse(text []byte) (*Credential, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("they have more than %d bytes", maxText)
	}
	k, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("they are not a kubeconfig") // the error could quote the token
	}
	context := k.Contexts[k.CurrentContext]
	if context == nil || k.Clusters[context.Cluster] == nil ||
		k.AuthInfos[context.AuthInfo] == nil {
		return nil, errors.New("current-context does not name a context with a cluster and a user")
	}

	server, user := k.Clusters[context.Cluster], k.AuthInfos[context.AuthInfo]
	u, err := url.Parse(server.Server)
	switch {
	case err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil:
		return nil, errors.New("server must be https://HOST:PORT")
	case len(server.CertificateAuthorityData) == 0:
		return nil, errors.New("certificate-authority-data is missing: write the CA of that API " +
			"server in place")
	case server.InsecureSkipTLSVerify || server.ProxyURL != "":
		return nil, errors.New("insecure-skip-tls-verify and proxy-url are not allowed")
	case user.Token == "" || !tokenOnly(user):
		return nil, errors.New("the user must have a token, in place, and nothing else")
	case context.Namespace == "":
		return nil, errors.New("the context has no namespace: write the one that the token may " +
			"read")
	}
	c := &Credential{Namespace: context.Namespace, Ends: tokenEnds(user.Token), text: string(text),
		Config: &rest.Config{Host: server.Server, BearerToken: user.Token, UserAgent: "veil-site",
			TLSClientConfig: rest.TLSClientConfig{CAData: server.CertificateAuthorityData,
				ServerName: server.TLSServerName},
			WarningHandler: rest.NoWarnings{}}} // the site's text, without a bound
	c.Config.Wrap(wrapBounded)
	return c, nil
}

// tokenOnly reports whether the user has no other credentials than a token.
func tokenOnly(u *clientcmdapi.AuthInfo) bool {
	return u.TokenFile == "" && u.Exec == nil && u.AuthProvider == nil && u.Username == "" &&
		u.Password == "" && u.ClientCertificate == "" && len(u.ClientCertificateData) == 0 &&
		u.ClientKey == "" && len(u.ClientKeyData) == 0 && u.Impersonate == ""
}

// tokenEnds returns the time in the claim exp of a JWT (RFC 7519), or the zero time.
func tokenEnds(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Exp int64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(raw, &claims) != nil || claims.Exp == 0 {
		return time.Time{}
	}
	return time.Unix(claims.Exp, 0)
}
