package chart

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// server is a real API server without nodes and without objects of Kubeveil. Helm and kubectl
// connect to it through a gate.
type server struct {
	bench
	gate *gate
	// config and admin connect as an administrator, not through the gate.
	config *rest.Config
	admin  apiobject.Client
	// network and volumes are files with the manifests of a release. whole and wholeVolumes have
	// the same with components, and beside has those for clusters with kube-proxy.
	network, volumes, whole, wholeVolumes, beside string
}

// wholeValues select in the chart what the files whole and wholeVolumes have.
var wholeValues = []string{"policy=kubernetes", "serviceProxy=ebpf", "metrics=serviceMonitor",
	"sites.enabled=true", "volumes.enabled=true", "volumes.snapshots=true"}

// withAll returns the arguments of Helm for the chart with wholeValues.
func withAll(args ...string) []string {
	for _, v := range wholeValues {
		args = append(args, "--set", v)
	}
	return args
}

// write writes the objects of a folder with components to a file, and returns its name.
func (s *server) write(t *testing.T, name, folder string, components ...string) string {
	t.Helper()
	file := filepath.Join(filepath.Dir(s.chart), name)
	filetest.Write(t, file, []byte(s.render(t, folder, components...)), 0o600)
	return file
}

// newServer returns an API server that ends with the test.
func newServer(t *testing.T) *server {
	t.Helper()
	nettest.NeedRoot(t)
	root, err := buildtree.Root()
	errtest.Must(t, err)
	if err := buildtree.NeedKubernetes(root); err != nil {
		nettest.Skip(t, nettest.NoProgram, err.Error())
	}
	s := &server{bench: newBench(t)}
	s.network = s.write(t, "kubeveil.yaml", "manifests")
	s.volumes = s.write(t, "kubeveil-csi.yaml", "manifests/csi")
	s.whole = s.write(t, "whole.yaml", "manifests", "policy", "services", "servicemonitor", "sites",
		"sites-servicemonitor")
	s.wholeVolumes = s.write(t, "whole-csi.yaml", "manifests/csi", "csi-servicemonitor", "snapshots")
	s.beside = s.write(t, "beside.yaml", "manifests", "policy", "api-path", "wireguard-go",
		"cni-dirs")

	l, err := lab.New(t.Context(), lab.Options{Nodes: -1, Family: lab.IPv4,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	errtest.Must(t, err)
	t.Cleanup(func() { errtest.Must(t, l.Close()) })
	s.config = l.Control.Config
	s.admin = apiobject.Client{Kubernetes: l.Control.Client, Dynamic: l.Control.Dynamic}
	s.gate = newGate(t, s.config)
	t.Setenv("KUBECONFIG", s.gate.kubeconfig(t))
	t.Setenv("KUBECACHEDIR", t.TempDir())
	s.kubectl(t, "delete", "--ignore-not-found", "-f", s.network) // a lab has them
	s.define(t, root)
	return s
}

// define applies the definitions that components need: of sites, of snapshots, and of the
// Prometheus operator.
func (s *server) define(t *testing.T, root string) {
	t.Helper()
	files := []string{s.write(t, "sites-crd.yaml", "manifests/components/sites/crd"),
		s.write(t, "snapshots-crd.yaml", "manifests/components/snapshots/crd")}
	for _, resource := range []string{"servicemonitors", "prometheusrules"} {
		file, err := buildtree.OperatorDefinition(t.Context(), root, resource)
		errtest.Must(t, err)
		files = append(files, file)
	}
	for _, f := range files {
		s.kubectl(t, "apply", "--server-side", "-f", f)
		s.kubectl(t, "wait", "--for=condition=Established", "-f", f)
	}
}

// try runs a program and returns its output.
func (s *server) try(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	return string(out), err
}

// kubectl runs kubectl, which must succeed, and returns its output.
func (s *server) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.try(t, s.kustomize.Command[0], args...)
	if err != nil {
		t.Fatalf("kubectl %q: %v: %s", args, err, out)
	}
	return out
}

// tryHelm runs Helm in the namespace of the chart.
func (s *server) tryHelm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return s.try(t, s.helm, append(args, "--namespace", "kube-system")...)
}

// runHelm is tryHelm for a command that must succeed.
func (s *server) runHelm(t *testing.T, args ...string) {
	t.Helper()
	if out, err := s.tryHelm(t, args...); err != nil {
		t.Fatalf("helm %q: %v: %s", args, err, out)
	}
}

// gate is a proxy before an API server. It notes all writes that succeed, and can refuse writes.
type gate struct {
	url   string
	proxy *httputil.ReverseProxy

	mu sync.Mutex
	// writes are the methods and paths of writes that succeeded, in their order.
	writes []string
	// left is the number of writes that the gate still lets through. A negative number means all.
	left int
	// each is called after each write, before the client gets its answer. Nil means no call.
	each func()
}

// newGate returns a gate that acts with the credentials of config, on a port of loopback.
func newGate(t *testing.T, config *rest.Config) *gate {
	t.Helper()
	transport, err := rest.TransportFor(config)
	errtest.Must(t, err)
	target, err := url.Parse(config.Host)
	errtest.Must(t, err)
	g := &gate{left: -1}
	g.proxy = &httputil.ReverseProxy{Transport: transport, FlushInterval: -1,
		ModifyResponse: g.note, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil { // otherwise the client has ended a watch
				t.Logf("%s %s: %v", r.Method, r.URL, err)
			}
			w.WriteHeader(http.StatusBadGateway)
		}}

	listener := httptest.NewServer(g)
	t.Cleanup(listener.Close)
	g.url = listener.URL
	return g
}

// kubeconfig returns the name of a kubeconfig that leads to the gate.
func (g *gate) kubeconfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	filetest.Write(t, file, []byte(`{apiVersion: v1, kind: Config, current-context: gate,
clusters: [{name: gate, cluster: {server: "`+g.url+`"}}],
contexts: [{name: gate, context: {cluster: gate}}]}
`), 0o600)
	return file
}

// ServeHTTP refuses a write if no more are left, and otherwise passes the request on.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if isWrite(r) && g.isCut() {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"apiVersion": "v1", "kind": "Status", "status": "Failure",
			"reason": "Forbidden", "code": 403, "message": "the test cuts the connection here"}`))
		return
	}
	g.proxy.ServeHTTP(w, r)
}

// isCut reports whether no more writes are left, and otherwise counts one.
func (g *gate) isCut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left > 0 {
		g.left--
		return false
	}
	return g.left == 0
}

// note notes a write that succeeded.
func (g *gate) note(r *http.Response) error {
	if !isWrite(r.Request) || r.StatusCode >= 300 {
		return nil
	}
	g.mu.Lock()
	g.writes = append(g.writes, r.Request.Method+" "+r.Request.URL.Path)
	each := g.each
	g.mu.Unlock()
	if each != nil {
		each()
	}
	return nil
}

// afterEach makes the gate call each after each write. Nil means no call.
func (g *gate) afterEach(each func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.each = each
}

// isWrite reports whether a request changes an object.
func isWrite(r *http.Request) bool {
	return r.Method != http.MethodGet && r.URL.Query().Get("dryRun") == "" &&
		!strings.HasPrefix(r.URL.Path, "/apis/authorization.k8s.io/")
}

// cutAfter makes the gate refuse all but the next n writes. A negative number means none.
func (g *gate) cutAfter(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = n
}

// since returns the writes from a number on, and the number of all.
func (g *gate) since(n int) ([]string, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.writes[n:]...), len(g.writes)
}
