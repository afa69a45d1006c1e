package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/logtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/site/link"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
)

// newReplica returns a replica with a configuration of one site, which read returns afterwards.
func newReplica(t *testing.T) (r *replica, read *config.Config) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	filetest.Write(t, kubeconfig, []byte("clusters: [{name: c, cluster: {server: "+
		"'http://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c}}]\n"+
		"current-context: c\n"), 0o600)
	c := config.Default()
	c.Source.Kubeconfig, c.Sites = kubeconfig, []cluster.Site{{Name: "b"}}
	read = &c
	r = &replica{Config: Config{Cluster: "a", Log: slog.New(slog.DiscardHandler),
		Read: func() (config.Config, error) { return *read, nil }},
		health: health.New(aliveLimit, stepLeader), metrics: NewMetrics(),
		current: &settings{Config: c, replaced: make(chan struct{})}, led: newLeader("")}
	return r, read
}

// A valid change replaces the configuration, and nothing else does.
func TestReload(t *testing.T) {
	r, read := newReplica(t)
	first := r.current
	r.reload()
	if r.current != first {
		t.Error("replaced without a change")
	}

	read.Sites = []cluster.Site{{Name: "a"}} // the name of this cluster
	r.reload()
	if text := scrape(t, r); r.current != first || !strings.Contains(text,
		"\nkubeveil_site_config_valid 0\n") {
		t.Errorf("a mistake replaced the configuration, or is not counted:\n%s", text)
	}

	read.Sites = []cluster.Site{{Name: "c"}}
	r.reload()
	select {
	case <-first.replaced:
	default:
		t.Error("the former configuration is in force")
	}
	if text := scrape(t, r); r.current.Sites[0].Name != "c" || !strings.Contains(text,
		"\nkubeveil_site_config_valid 1\n") {
		t.Errorf("%+v\n%s", r.current.Sites, text)
	}
}

// scrape returns the metrics as a program of this node sees them.
func scrape(t *testing.T, r *replica) string {
	t.Helper()
	server := httptest.NewServer(r.handler())
	defer server.Close()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/metrics", nil)
	errtest.Must(t, err)
	answer, err := http.DefaultClient.Do(q)
	errtest.Must(t, err)
	defer answer.Body.Close()
	var b strings.Builder
	errtest.Must(t, answer.Write(&b))
	return b.String()
}

// A comparison is in the metrics. A closed site has no series.
func TestMetrics(t *testing.T) {
	r, _ := newReplica(t)
	r.compared(link.Round{Duration: time.Second, Written: 3, Failed: 1, Waiting: 2,
		Sites: []link.SiteState{
			{Name: "b", Open: true, Readable: true, Nodes: 4, Imports: 5, Endpoints: 6, Exports: 7,
				Refused: 8, TokenEnds: time.Unix(1_800_000_000, 0)},
			{Name: "c", Open: true},
			{Name: "d"}}})
	text := scrape(t, r)
	for _, want := range []string{`kubeveil_site_readable{site="b"} 1`,
		`kubeveil_site_readable{site="c"} 0`, `kubeveil_site_nodes{site="b"} 4`,
		`kubeveil_site_imports{site="b"} 5`, `kubeveil_site_endpoints{site="b"} 6`,
		`kubeveil_site_exports{site="b"} 7`, `kubeveil_site_refused{site="b"} 8`,
		`kubeveil_site_token_end_timestamp_seconds{site="b"} 1.8e+09`,
		`kubeveil_site_writes_total{result="done"} 3`,
		`kubeveil_site_writes_total{result="failed"} 1`, "kubeveil_site_writes_waiting 2",
		"kubeveil_site_round_duration_seconds_count 1", "kubeveil_site_leader 0"} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	for _, none := range []string{`site="d"`, `token_end_timestamp_seconds{site="c"}`} {
		if strings.Contains(text, none) {
			t.Errorf("%q is there", none)
		}
	}
}

// A replica that waits for the lease is alive, and ready once there is a leader. One that leads is
// ready after its first comparison.
func TestProbes(t *testing.T) {
	r, _ := newReplica(t)
	path := filepath.Join(t.TempDir(), "run", "probe.sock")
	l, err := listenUnix(path)
	errtest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- telemetry.Serve(ctx, l, r.handler(), r.Log) }()
	r.checkProbes(t, path)
	cancel()
	errtest.Check(t, <-done)

	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	errtest.Must(t, err)
	left.SetUnlinkOnClose(false)
	errtest.Must(t, left.Close())
	again, err := listenUnix(path)
	errtest.Must(t, err)
	errtest.Must(t, again.Close())
	filetest.Write(t, path+"x", nil, 0o600)
	if err := Probe(t.Context(), path, "alive"); err == nil ||
		!strings.Contains(err.Error(), "no veil-site answers") {
		t.Errorf("without a process: %v", err)
	}
	if _, err := listenUnix(path + "x"); err == nil ||
		!strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in the place of the socket: %v", err)
	}
}

func (r *replica) checkProbes(t *testing.T, path string) {
	t.Helper()
	now := time.Now()
	r.health.Now = func() time.Time { return now }
	check := func(when, what, want string) {
		t.Helper()
		err := Probe(t.Context(), path, what)
		if want == "" && err != nil || want != "" && (err == nil ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%s, %s: %v, want %q", when, what, err, want)
		}
	}
	check("at the start", "alive", "")
	check("at the start", "ready", stepLeader)
	r.health.Done(stepLeader)
	check("while another leads", "ready", "")
	r.health.Undone(stepCompared)
	check("as a new leader", "ready", stepCompared)
	r.compared(link.Round{})
	check("after a comparison", "ready", "")

	now = now.Add(aliveLimit + time.Second)
	check("after a long silence", "alive", "the main loop has not gone round")
	r.reload()
	check("while no Linker runs", "alive", "")
	now = now.Add(aliveLimit + time.Second)
	r.linking.Store(true)
	r.reload()
	check("while a Linker hangs", "alive", "the main loop has not gone round")
}

// Pods and programs of this node get metrics. The answer to another host would cross the network in
// clear.
func TestMetricsAreForPods(t *testing.T) {
	r, read := newReplica(t)
	h := r.handler()
	read.ClusterRanges = nettest.Prefixes("10.244.0.0/16") // after the start
	r.reload()
	own := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9634}
	for from, want := range map[string]int{"10.244.1.5:1": 200, "127.0.0.1:1": 200,
		"192.0.2.1:1": 200, "192.0.2.2:1": 403, "10.245.1.5:1": 403, "@": 403} {
		q := httptest.NewRequestWithContext(context.WithValue(t.Context(),
			http.LocalAddrContextKey, net.Addr(own)), http.MethodGet, "/metrics", nil)
		q.RemoteAddr = from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, q)
		if w.Code != want {
			t.Errorf("%s: status %d, want %d", from, w.Code, want)
		}
	}
}

// A port that is taken is tried again, and the rest goes on.
func TestMetricsWithoutAPort(t *testing.T) {
	r, _ := newReplica(t)
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	r.Metrics = server.Listener.Addr().String()
	var b logtest.Buffer
	r.Log = slog.New(slog.NewTextHandler(&b, nil))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.serveMetrics(ctx, r.handler()) }()
	nettest.Until(t, 10*time.Second, "it is logged", func() bool {
		return strings.Contains(b.String(), "another replica of veil-site on this node")
	})
	cancel()
	<-done
}

// A replica leaves the port of the metrics to the leader, if both are on one node.
func TestMetricsPortIsTheLeaders(t *testing.T) {
	r, _ := newReplica(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	r.Metrics, r.Identity = free.Addr().String(), "node-1/two"
	errtest.Must(t, free.Close())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.serveMetrics(ctx, r.handler()) }()
	defer func() { cancel(); <-done }()

	for _, step := range []struct {
		leader string
		serves bool
	}{{"", true}, {"node-1/one", false}, {"node-2/one", true}, {"node-1/one", false},
		{"node-1/two", true}, {"one", true}} {
		r.setLeader(func() string { return step.leader })
		nettest.Until(t, 10*time.Second, fmt.Sprintf("while %q leads, it serves: %v", step.leader,
			step.serves), func() bool {
			c, err := net.Dial("tcp", r.Metrics)
			if err == nil {
				c.Close()
			}
			return (err == nil) == step.serves
		})
	}
}

// Without a valid configuration, nothing begins.
func TestRunNeedsAConfiguration(t *testing.T) {
	wrong := errors.New("wrong")
	err := Run(t.Context(), Config{Read: func() (config.Config, error) {
		return config.Config{}, wrong
	}})
	if !errors.Is(err, wrong) {
		t.Error(err)
	}
}
