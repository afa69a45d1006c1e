package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/service"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// kubeProxy is the path at which hack/build-kubernetes.sh installs kube-proxy.
const kubeProxy = "../../../../out/bin/kube-proxy"

var nodeAddr = netip.MustParseAddr("198.18.0.1")

// object returns service i with three endpoints. The first service also has a load balancer
// address.
func object(i int) Object {
	name := service.Name{Namespace: "ns", Name: fmt.Sprintf("svc-%d", i)}
	o := Object{
		Service: service.Service{Name: name,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{198, 19, 0, byte(i + 1)})},
			Ports:      []service.Port{{Name: "p80", Protocol: service.TCP, Port: 80}}},
		Slice: service.Slice{Service: name, Name: name.Name + "-abcde",
			Ports: []service.SlicePort{{Name: "p80", Protocol: service.TCP, Port: 80}}},
	}
	if i == 0 {
		o.Service.LoadBalancerIPs = nettest.Addrs("198.19.127.1")
	}
	for e := range 3 {
		o.Slice.Endpoints.Append(service.Endpoint{Node: "other", Ready: true,
			Serving: true, Addr: netip.AddrFrom4([4]byte{198, 19, 128, byte(10*i + e + 1)})})
	}
	return o
}

func proxy(t *testing.T, mode string) (KubeProxy, *suite.Space) {
	t.Helper()
	nettest.NeedRoot(t)
	for _, p := range []string{"ip", "nsenter", "nft", "iptables-restore"} {
		nettest.NeedProgram(t, p)
	}
	k := KubeProxy{Path: nettest.NeedProgram(t, kubeProxy), Mode: mode, Node: nodeAddr,
		Pods: netip.MustParsePrefix("198.18.0.0/18"), Dir: t.TempDir(), Limit: time.Minute}
	s, err := suite.NewSpace("node")
	if s != nil {
		t.Cleanup(s.Close)
	}
	errtest.Must(t, err)
	return k, s
}

// rulesOf returns the rules of a namespace in the output of the program of a mode.
func rulesOf(t *testing.T, s *suite.Space, mode string) string {
	t.Helper()
	list := map[string][]string{"nftables": {"nft", "list", "ruleset"},
		"iptables": {"iptables-save"}}[mode]
	out, err := suite.Output(s.Command(t.Context(), nil, list[0], list[1:]...))
	errtest.Must(t, err)
	return string(out)
}

// TestKubeProxyWritesAllServices starts kube-proxy, changes an endpoint, and ends kube-proxy. The
// rules of all services, with the change, must remain.
func TestKubeProxyWritesAllServices(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			k, s := proxy(t, mode)
			plan := []Object{object(0), object(1), object(2)}
			p, err := k.Start(t.Context(), s, plan)
			errtest.Must(t, err)
			end := sync.OnceFunc(p.Close)
			defer end()

			if p.Took <= 0 || p.Took > k.Limit {
				t.Errorf("the rules took %v", p.Took)
			}
			rules := rulesOf(t, s, mode)
			for _, want := range []string{"198.19.0.1", "198.19.0.2", "198.19.0.3", "198.19.127.1",
				"198.19.128.1", "198.19.128.23"} {
				if !strings.Contains(rules, want) {
					t.Errorf("no rule has %s", want)
				}
			}

			changed := object(1).Slice
			all := slices.Collect(changed.Endpoints.All())
			all[0].Addr = netip.MustParseAddr("198.19.128.99")
			changed.Endpoints = service.EndpointsOf(all...)
			took, err := p.Change(t.Context(), changed)
			if err != nil || took <= 0 || took > k.Limit {
				t.Errorf("a change took %v: %v", took, err)
			}
			end()
			if rules := rulesOf(t, s, mode); !strings.Contains(rules, "198.19.128.99") ||
				!strings.Contains(rules, "198.19.0.3") {
				t.Error("the rules lack the change or other services")
			}
		})
	}
}

// TestKubeProxyIsLate checks that a kube-proxy that exceeds its limit returns ErrLate and leaves no
// process.
func TestKubeProxyIsLate(t *testing.T) {
	k, s := proxy(t, "nftables")
	k.Limit = time.Millisecond
	if _, err := k.Start(t.Context(), s, []Object{object(0)}); !errors.Is(err, ErrLate) ||
		!strings.Contains(err.Error(), "within 1ms") {
		t.Errorf("error %v, want ErrLate with the limit", err)
	}
}

// TestKubeProxyEnds checks the error of a kube-proxy that refuses its configuration and ends.
func TestKubeProxyEnds(t *testing.T) {
	k, s := proxy(t, "carrier-pigeon")
	if _, err := k.Start(t.Context(), s, nil); err == nil || errors.Is(err, ErrLate) ||
		!strings.Contains(err.Error(), "carrier-pigeon") ||
		!strings.Contains(err.Error(), "it has ended") {
		t.Errorf("error %v, want that kube-proxy ended, with its output", err)
	}
}

func TestFeedRefusesWhatItDoesNotHave(t *testing.T) {
	f, err := NewFeed(nodeAddr, nil)
	errtest.Must(t, err)
	defer f.Close()
	client := f.server.Client()

	for _, tt := range []struct {
		method, path string
		want         int
	}{
		{http.MethodGet, "/api/v1/nodes", http.StatusOK},
		{http.MethodGet, "/apis/networking.k8s.io/v1/servicecidrs", http.StatusOK},
		{http.MethodGet, "/api/v1/secrets", http.StatusNotFound},
		{http.MethodPost, servicesPath, http.StatusNotFound},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, f.server.URL+tt.path, nil)
		errtest.Must(t, err)
		resp, err := client.Do(req)
		errtest.Must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil ||
			resp.StatusCode != tt.want {
			t.Errorf("%s %s: %s (%v), want %d", tt.method, tt.path, resp.Status, err, tt.want)
		}
	}
	if !f.Began().IsZero() {
		t.Error("a list of nodes counts as a list of services")
	}
}

func TestChangeEndsWithItsContext(t *testing.T) {
	f, err := NewFeed(nodeAddr, []Object{object(0)})
	errtest.Must(t, err)
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Change(ctx, object(0).Slice); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the error of the context", err)
	}
}

const metricsText = `# HELP kubeproxy_sync_proxy_rules_last_timestamp_seconds [ALPHA] The last time
# TYPE kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.7641e+09
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 7
kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="0.25"} 3
kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"} 0.5
go_goroutines 100
`

func TestParseMetrics(t *testing.T) {
	got, err := parseMetrics(strings.NewReader(metricsText))
	if err != nil || len(got) != 2 || got[metricSynced] != 1.7641e9 ||
		got[metricChanges+"_sum"] != 0.5 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseMetrics(strings.NewReader(`a{ip_family="IPv4"} x`)); err == nil {
		t.Error("no error for a metric without a number")
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add(metricsText)
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = parseMetrics(strings.NewReader(text))
	})
}

func TestHAProxyServesItsFrontends(t *testing.T) {
	got := HAProxy(2, Frontend{Name: "svc4", At: netip.MustParseAddrPort("192.168.99.33:80"),
		Servers: []netip.AddrPort{netip.MustParseAddrPort("10.180.0.4:80"),
			netip.MustParseAddrPort("10.180.0.5:80")}})
	const want = `global
	nbthread 2
	maxconn 4000
defaults
	mode tcp
	balance random
	maxconn 4000
	timeout connect 5s
	timeout client 60s
	timeout server 60s
frontend svc4
	bind 192.168.99.33:80
	default_backend svc4
backend svc4
	server b0 10.180.0.4:80
	server b1 10.180.0.5:80
`
	if got != want {
		t.Errorf("got\n%s", got)
	}
}

// TestHAProxyIsAccepted checks that haproxy accepts the configuration.
func TestHAProxyIsAccepted(t *testing.T) {
	path := nettest.NeedProgram(t, "haproxy")
	file := t.TempDir() + "/haproxy.cfg"
	text := HAProxy(1, Frontend{Name: "a", At: netip.MustParseAddrPort("127.0.0.1:7446"),
		Servers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:7447")}})
	errtest.Must(t, os.WriteFile(file, []byte(text), 0o600))
	if out, err := exec.CommandContext(t.Context(), path, "-c", "-f", file).CombinedOutput(); err !=
		nil {
		t.Errorf("%v: %s", err, out)
	}
}
