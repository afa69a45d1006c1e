package credential

import (
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// kubeconfig returns a valid kubeconfig.
func kubeconfig(token string) string {
	return `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: kubeveil-site-a}}]
clusters: [{name: c, cluster: {server: "https://198.51.100.1:6443",
  certificate-authority-data: Q0E=}}]
users: [{name: u, user: {token: ` + token + `}}]
`
}

// A kubeconfig names no file or program, and no way around the CA.
func TestKubeconfigHasEverythingInPlace(t *testing.T) {
	for name, tt := range map[string]struct{ old, with, want string }{
		"good": {"", "", ""},
		"no CA": {"certificate-authority-data: Q0E=", "", "certificate-authority-data is " +
			"missing"},
		"a CA file": {"certificate-authority-data: Q0E=", "certificate-authority: /ca",
			"is missing"},
		"http": {"https:", "http:", "server must be https"},
		"insecure": {"data: Q0E=", "data: Q0E=, insecure-skip-tls-verify: true",
			"insecure-skip-tls-verify"},
		"proxy": {"data: Q0E=", "data: Q0E=, proxy-url: 'http://p'", "proxy-url are not allowed"},
		"a program": {"token: secret", "token: secret, exec: {command: sh, apiVersion: v1}",
			"must have a token"},
		"a token file": {"token: secret", "tokenFile: /token", "must have a token"},
		"no namespace": {", namespace: kubeveil-site-a", "", "the context has no namespace"},
		"no context":   {"current-context: c", "", "current-context"},
		"no YAML":      {"apiVersion", "\x01secret", "they are not a kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parse([]byte(strings.Replace(kubeconfig("secret"), tt.old, tt.with, 1)))
			switch {
			case tt.want == "" && (err != nil || c.Namespace != "kubeveil-site-a" ||
				!c.Ends.IsZero()):
				t.Errorf("%+v: %v", c, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want %q", err, tt.want)
			case err != nil && strings.Contains(err.Error(), "secret"):
				t.Errorf("the error has the token: %v", err)
			}
		})
	}

	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"exp":1795000000}`))
	c, err := parse([]byte(kubeconfig("e30." + claims + ".e30")))
	if err != nil || !c.Ends.Equal(time.Unix(1795000000, 0)) {
		t.Errorf("%+v: %v", c, err)
	}
}

// endless never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }

func TestAnswersAreBounded(t *testing.T) {
	n, err := io.Copy(io.Discard, &boundedBody{ReadCloser: endless{}, room: maxAnswer})
	if n != maxAnswer || !errors.Is(err, errAnswer) {
		t.Errorf("%d bytes: %v", n, err)
	}
}
