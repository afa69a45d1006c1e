package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/retry"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/site/mirrored"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/site/link"
)

// server is how an API server is reached and recognized.
type server struct {
	Host string
	// Name is the name in its certificate if it is not the host, or "".
	Name string
	CA   []byte
}

// serverOf returns the API server of a client configuration, which must have its CA.
func serverOf(cfg *rest.Config) (server, error) {
	cfg = rest.CopyConfig(cfg)
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return server{}, err
	}
	if len(cfg.CAData) == 0 {
		return server{}, errors.New("its kubeconfig has no certificate-authority, by which " +
			"veil-site recognizes the API server: add it")
	}
	return server{Host: cfg.Host, Name: cfg.ServerName, CA: cfg.CAData}, nil
}

// readerName is the name of the account and of its RoleBinding.
const readerName = "reader"

// account is the account by which another cluster reads what side states to it.
type account struct {
	side *side
	// reader is the name of the other cluster in the configuration of side.
	reader string
}

// namespace returns the namespace that the account may read.
func (a account) namespace() string { return link.NamespacePrefix + a.reader }

// credentials are the content of a file of veil-site's Secret.
type credentials struct {
	server server
	token  string
	ends   time.Time
	text   []byte
}

// make creates the account, as far as it is missing, and a token of it.
func (a account) make(ctx context.Context, s server, lifetime time.Duration) (credentials, error) {
	c := credentials{server: s}
	namespace, client := a.namespace(), a.side.Client
	labels := map[string]string{"app.kubernetes.io/name": "kubeveil",
		"app.kubernetes.io/component": program, "app.kubernetes.io/part-of": "kubeveil"}
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: labels}}, metav1.CreateOptions{})
	if err := there(err); err != nil {
		return c, fmt.Errorf("create namespace %s in %s: %w", namespace, a.side.What, err)
	}
	_, err = client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta:                   metav1.ObjectMeta{Name: readerName, Labels: labels},
		AutomountServiceAccountToken: new(false)}, metav1.CreateOptions{})
	if err := there(err); err != nil {
		return c, fmt.Errorf("create ServiceAccount %s/%s in %s: %w", namespace, readerName,
			a.side.What, err)
	}
	if err := a.bind(ctx, labels); err != nil {
		return c, err
	}

	seconds := int64(lifetime.Seconds())
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, readerName,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return c, fmt.Errorf("create a token of %s/%s in %s: %w", namespace, readerName,
			a.side.What, err)
	}
	c.token, c.ends = token.Status.Token, token.Status.ExpirationTimestamp.Time
	c.text, err = kubeconfig(s, c.token, namespace)
	return c, err
}

// there returns nil for the error of a creation of an object that exists already.
func there(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// bind lets the account read SiteRecords of its namespace.
func (a account) bind(ctx context.Context, labels map[string]string) error {
	bindings := a.side.Client.RbacV1().RoleBindings(a.namespace())
	want := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: readerName, Labels: labels},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: readerRole},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: readerName,
			Namespace: a.namespace()}}}
	_, err := bindings.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		var has *rbacv1.RoleBinding
		has, err = bindings.Get(ctx, readerName, metav1.GetOptions{})
		if err == nil && (has.RoleRef != want.RoleRef || len(has.Subjects) != 1 ||
			has.Subjects[0] != want.Subjects[0]) {
			err = fmt.Errorf("another one has the name: delete it: kubectl -n %s delete "+
				"rolebinding %s", a.namespace(), readerName)
		}
	}
	if err != nil {
		return fmt.Errorf("create RoleBinding %s/%s in %s: %w", a.namespace(), readerName,
			a.side.What, err)
	}
	return nil
}

// kubeconfig returns a kubeconfig in the form that veil-site accepts.
func kubeconfig(s server, token, namespace string) ([]byte, error) {
	k := clientcmdapi.NewConfig()
	k.Clusters["site"] = &clientcmdapi.Cluster{Server: s.Host, TLSServerName: s.Name,
		CertificateAuthorityData: s.CA}
	k.AuthInfos[readerName] = &clientcmdapi.AuthInfo{Token: token}
	k.Contexts["site"] = &clientcmdapi.Context{Cluster: "site", AuthInfo: readerName,
		Namespace: namespace}
	k.CurrentContext = "site"
	return clientcmd.Write(*k)
}

// Limits of the first read with new credentials.
const (
	tryRequest = 5 * time.Second
	// tryFor is long enough for a new RoleBinding to be in force.
	tryFor = 10 * time.Second
)

// try reads with the new credentials. It returns an error if they do not have the right, and a
// warning if the API server does not answer from here.
func (a account) try(ctx context.Context, c credentials) (warning string, err error) {
	d, err := dynamic.NewForConfig(&rest.Config{Host: c.server.Host, BearerToken: c.token,
		Timeout: tryRequest, UserAgent: "veilctl", TLSClientConfig: rest.TLSClientConfig{
			CAData: c.server.CA, ServerName: c.server.Name}})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	err = remote.Until(ctx, "the first read", tryFor, func(ctx context.Context) error {
		_, err := d.Resource(mirrored.SiteRecords).Namespace(a.namespace()).List(ctx,
			metav1.ListOptions{Limit: 1})
		if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			return remote.Stop(err)
		}
		return err
	})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return "", fmt.Errorf("the new account may not read SiteRecords of %s: %w", a.namespace(),
			err)
	case err != nil:
		return fmt.Sprintf("the new credentials could not be tried from this machine, at %s: %v",
			c.server.Host, err), nil
	}
	return "", nil
}

// fileIsNew returns an error if the file of the flag exists. A token that was made before could not
// be written.
func (f *linkFlags) fileIsNew() error {
	if f.file == "" {
		return nil
	}
	if _, err := os.Lstat(f.file); !errors.Is(err, os.ErrNotExist) {
		return cmp.Or(err, fmt.Errorf("--to-file %s exists: name a new file", f.file))
	}
	return nil
}

// write writes credentials for a site to the Secret of a cluster, or to the file of the flag, and
// nowhere else.
func (f *linkFlags) write(ctx context.Context, here *side, site string, text []byte) (
	where string, err error) {
	if f.file == "" {
		if err := putKey(ctx, here.Cluster, site, text); err != nil {
			return "", fmt.Errorf("write the Secret kube-system/%s: %w", program, err)
		}
		return "Secret kube-system/" + program + ", key " + site, nil
	}
	// O_EXCL: a terminal, a link and a file that others may read exist already.
	file, err := os.OpenFile(f.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("--to-file %s exists: name a new file", f.file)
	}
	if err != nil {
		return "", fmt.Errorf("--to-file: %w", err)
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return "", fmt.Errorf("--to-file: %w", err)
	}
	return "file " + f.file, nil
}

// putKey sets a key of the Secret, and creates the Secret if it is missing.
func putKey(ctx context.Context, k *remote.Cluster, site string, text []byte) error {
	secrets := k.Client.CoreV1().Secrets(remote.SystemNamespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		has, err := secrets.Get(ctx, program, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: program,
				Labels: map[string]string{"app.kubernetes.io/name": "kubeveil",
					"app.kubernetes.io/component": program,
					"app.kubernetes.io/part-of":   "kubeveil"}},
				Data: map[string][]byte{site: text}}, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		if has.Data == nil {
			has.Data = map[string][]byte{}
		}
		has.Data[site] = text
		_, err = secrets.Update(ctx, has, metav1.UpdateOptions{})
		return err
	})
}

// dropKey removes a key of the Secret, and the Secret if it has no other. It reports whether the key
// was there.
func dropKey(ctx context.Context, k *remote.Cluster, site string) (was bool, err error) {
	secrets := k.Client.CoreV1().Secrets(remote.SystemNamespace)
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		has, err := secrets.Get(ctx, program, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, found := has.Data[site]; !found {
			return nil
		}
		was = true
		delete(has.Data, site)
		if len(has.Data) > 0 {
			_, err = secrets.Update(ctx, has, metav1.UpdateOptions{})
			return err
		}
		return secrets.Delete(ctx, program, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: &has.UID, ResourceVersion: &has.ResourceVersion}})
	})
	return was, err
}
