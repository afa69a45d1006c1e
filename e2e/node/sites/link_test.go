package sites_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/e2e/lab/apiserver"
	"github.com/kubeveil/kubeveil/e2e/lab/gate"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/link"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// within is the promised time of an unexport.
const within = 20 * time.Second

var (
	kubeveil  = schema.GroupVersion{Group: "kubeveil.io", Version: "v1alpha1"}
	siteNodes = kubeveil.WithResource("sitenodes")
	records   = kubeveil.WithResource("siterecords")
	links     = kubeveil.WithResource("sitelinks")
	multi     = schema.GroupVersion{Group: mcs.GroupName, Version: "v1beta1"}
	exports   = multi.WithResource("serviceexports")
	imports   = multi.WithResource("serviceimports")
)

// side is a cluster: a control plane, and a veil-site.
type side struct {
	*lab.Lab
	whole       *testing.T // the test of all parts
	name        string
	pods, nodes []netip.Prefix
	sites       []cluster.Site
	credentials string // folder
	gate        *gate.Gate
	stop        func() // of the veil-site that runs, or nil
}

// newSide returns a cluster with a node, and with the objects of the component.
func newSide(ctx context.Context, t *testing.T, l *lab.Lab, name, pods, nodes string) *side {
	t.Helper()
	l.Control.Host() // the next lab must not have this one's definitions
	s := &side{Lab: l, whole: t, name: name, pods: nettest.Prefixes(pods),
		nodes:       nettest.Prefixes(nodes),
		credentials: t.TempDir()}
	errtest.Must(t, l.Control.InstallSites(ctx))
	client := apiobject.Client{Kubernetes: l.Control.Client, Dynamic: l.Control.Dynamic}

	addr, prefix := s.nodes[0].Addr().Next(), netip.PrefixFrom(s.pods[0].Addr(), 24)
	errtest.Must(t, client.AddNode(ctx, cluster.Node{Name: "node-1",
		Addresses: []netip.Addr{addr}, PodPrefixes: []netip.Prefix{prefix},
		Claim: &cluster.Claim{Keys: []cluster.Key{{Public: wgkey.Public{31: name[0]}}},
			Endpoints:   []netip.AddrPort{netip.AddrPortFrom(addr, 51820)},
			PodPrefixes: []netip.Prefix{prefix}}}))
	_, err := l.Control.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	s.gate, err = gate.New(l.Control.Config)
	errtest.Must(t, err)
	t.Cleanup(func() { errtest.Check(t, s.gate.Close()) })
	return s
}

// knows adds other as an open site of s, whose services are imported into the namespace shop.
func (s *side) knows(other *side) {
	s.sites = append(s.sites, cluster.Site{Name: other.name, Reach: cluster.ReachAll,
		PodRanges: other.pods, NodeRanges: other.nodes, Imports: []string{"shop"}})
}

// invite makes the namespace and the account for another side, and gives it the credentials.
func (s *side) invite(ctx context.Context, t *testing.T, other *side) {
	t.Helper()
	namespace := link.NamespacePrefix + other.name
	core, rbac := s.Control.Client.CoreV1(), s.Control.Client.RbacV1()
	_, err := core.Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	for _, account := range []string{"reader", "stranger"} {
		_, err := core.ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
		errtest.Must(t, err)
	}
	_, err = rbac.RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
			Name: "kubeveil-site-reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "reader"}}},
		metav1.CreateOptions{})
	errtest.Must(t, err)
	other.trust(ctx, t, s, "reader", namespace, s.Control.Config.CAData)
}

// token returns a token of a service account. It lasts longer than any test, and ends within a week.
func (s *side) token(ctx context.Context, t *testing.T, namespace, account string) string {
	t.Helper()
	day := int64(24 * time.Hour / time.Second)
	r, err := s.Control.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &day}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	return r.Status.Token
}

// writeKubeconfig writes a kubeconfig for the API server of s at a URL, with a token of a service
// account of kube-system.
func (s *side) writeKubeconfig(ctx context.Context, t *testing.T, path, server, account string) {
	t.Helper()
	text, err := apiserver.Kubeconfig(clientcmdapi.Cluster{Server: server,
		CertificateAuthorityData: s.Control.Config.CAData},
		clientcmdapi.AuthInfo{Token: s.token(ctx, t, "kube-system", account)})
	errtest.Must(t, err)
	errtest.Must(t, os.WriteFile(path, text, 0o600))
}

// trust writes the credentials of s for another side.
func (s *side) trust(ctx context.Context, t *testing.T, other *side, account, namespace string,
	ca []byte) {
	t.Helper()
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: other.gate.URL(),
		CertificateAuthorityData: ca}
	k.AuthInfos["u"] = &clientcmdapi.AuthInfo{
		Token: other.token(ctx, t, link.NamespacePrefix+s.name, account)}
	k.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: namespace}
	k.CurrentContext = "c"
	text, err := clientcmd.Write(*k)
	errtest.Must(t, err)
	errtest.Must(t, os.WriteFile(filepath.Join(s.credentials, other.name), text, 0o600))
}

// as returns a client with a token of veil-site.
func (s *side) as(ctx context.Context, t *testing.T) dynamic.Interface {
	t.Helper()
	d, err := dynamic.NewForConfig(nodetest.ConfigAs(s.Lab, s.token(ctx, t, "kube-system",
		"veil-site")))
	errtest.Must(t, err)
	return d
}

// start runs a veil-site until stop is called, or the whole test ends.
func (s *side) start(ctx context.Context) {
	t := s.whole
	t.Helper()
	l, err := link.New(link.Config{API: nodetest.ConfigAs(s.Lab, s.token(ctx, t, "kube-system",
		"veil-site")), Cluster: s.name, PodRanges: s.pods, NodeRanges: s.nodes, Sites: s.sites,
		Credentials: s.credentials, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	errtest.Must(t, err)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	s.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(s.stop)
}

// export exports the Service shop/NAME of port 80 with endpoints at these addresses.
func (s *side) export(ctx context.Context, t *testing.T, name string, headless bool,
	addrs ...string) {
	t.Helper()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	if headless {
		svc.Spec.ClusterIP = corev1.ClusterIPNone
	}
	_, err := s.Control.Client.CoreV1().Services("shop").Create(ctx, svc, metav1.CreateOptions{})
	errtest.Must(t, err)
	port, portName := int32(8080), "http"
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}}}
	for _, a := range addrs {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	_, err = s.Control.Client.DiscoveryV1().EndpointSlices("shop").Create(ctx, slice,
		metav1.CreateOptions{})
	errtest.Must(t, err)
	s.exportOnly(ctx, t, name)
}

// exportOnly creates the ServiceExport shop/NAME.
func (s *side) exportOnly(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	_, err := s.Control.Dynamic.Resource(exports).Namespace("shop").Create(ctx,
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": multi.String(),
			"kind": "ServiceExport", "metadata": map[string]any{"name": name}}},
		metav1.CreateOptions{})
	errtest.Must(t, err)
}

func (s *side) unexport(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	errtest.Must(t, s.Control.Dynamic.Resource(exports).Namespace("shop").Delete(ctx, name,
		metav1.DeleteOptions{}))
}

// served returns the import shop/NAME, and the addresses of its endpoints by cluster.
func (s *side) served(ctx context.Context, name string) (i mcs.ServiceImport,
	addrs map[string][]string, err error) {
	o, err := s.Control.Dynamic.Resource(imports).Namespace("shop").Get(ctx, name,
		metav1.GetOptions{})
	if err != nil {
		return i, nil, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &i); err != nil {
		return i, nil, err
	}
	list, err := s.Control.Client.DiscoveryV1().EndpointSlices("shop").List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + mirror.DerivedName(name)})
	if err != nil {
		return i, nil, err
	}
	addrs = map[string][]string{}
	for _, slice := range list.Items {
		from := slice.Labels[mcs.LabelSourceCluster]
		for _, e := range slice.Endpoints {
			addrs[from] = append(addrs[from], e.Addresses...)
		}
	}
	return i, addrs, nil
}

// conditions returns the conditions of an object as "Type=Status Reason: message".
func (s *side) conditions(ctx context.Context, kind schema.GroupVersionResource, namespace,
	name string) (map[string]string, error) {
	var r dynamic.ResourceInterface = s.Control.Dynamic.Resource(kind)
	if namespace != "" {
		r = s.Control.Dynamic.Resource(kind).Namespace(namespace)
	}
	o, err := r.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	list, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	out := map[string]string{}
	for _, c := range list {
		c := c.(map[string]any)
		out[c["type"].(string)] = fmt.Sprintf("%v %v: %v", c["status"], c["reason"], c["message"])
	}
	return out, err
}
