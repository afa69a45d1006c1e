package keeper

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// TestLimitsAreNamedAsConfigured compares the label of metrics with the keys of services.limits.
func TestLimitsAreNamedAsConfigured(t *testing.T) {
	upper := regexp.MustCompile(`[A-Z]`)
	var want, got []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config.ServiceLimits]()) {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		want = append(want, strings.ToLower(upper.ReplaceAllString(key, "_$0")))
	}
	for _, table := range append(tableSizes(service.Limits{}, service.Limits{}),
		flowSizes(bpfmaps.Memory{}, bpfmaps.Memory{})...) {
		got = append(got, table.Limit)
	}
	if !slices.Equal(got, want) {
		t.Errorf("tables are named %q, want %q", got, want)
	}
}

// A counter with a sentence counts refusals. A counter without a name is not shown.
func TestOutcomesAreChoicesOrRefusals(t *testing.T) {
	counters := make([]bpfmaps.Counter, 3)
	for i := range counters {
		counters[i].Where, counters[i].Count = "packet", uint64(i+1)
	}
	counters[0].Name = "tcp"
	counters[1].Name, counters[1].Sentence = "not_here", "No backend is here."

	chosen, refused := outcomes(counters)
	if want := []telemetry.ServiceCount{{Where: "packet", What: "tcp", Count: 1}}; !slices.Equal(
		chosen, want) {
		t.Errorf("chosen: %v, want %v", chosen, want)
	}
	if want := []telemetry.ServiceCount{{Where: "packet", What: "not_here", Count: 2}}; !slices.Equal(
		refused, want) {
		t.Errorf("refused: %v, want %v", refused, want)
	}
}

func TestAPIFrontendsHaveRoom(t *testing.T) {
	if config.MaxAPIFrontends != service.MaxHostFrontends {
		t.Errorf("the configuration takes %d addresses, the table %d", config.MaxAPIFrontends,
			service.MaxHostFrontends)
	}
	want := []netip.AddrPort{netip.MustParseAddrPort("198.18.0.5:6443")}
	cfg := config.Config{Services: config.Services{APIFrontends: want}}
	got := apiserver.KnownBefore(cfg, netip.AddrPort{}, netip.AddrPort{}, nil).Host
	if !slices.Equal(got, want) {
		t.Errorf("the table gets %v, want %v", got, want)
	}
}

func TestAPIServersBeforeTheyAreListed(t *testing.T) {
	for name, c := range map[string]struct {
		asked, host, port       string
		fronts, guess, remember string
	}{
		"a kubeconfig with a server": {asked: "198.18.0.5:6443", guess: "198.19.0.1:443",
			remember: "198.18.0.5:6443 198.18.0.6:6443"},
		"a kubeconfig with the service": {asked: "198.19.7.1:443", fronts: "198.19.7.1:443",
			guess: "198.19.0.1:443", remember: "198.18.0.6:6443"},
		"a pod": {host: "fd42:9::1", port: "8443",
			fronts: "[fd42:9::1]:8443", guess: "198.19.0.1:443", remember: "198.18.0.6:6443"},
		"a pod that was told a balancer": {host: "198.18.0.7", port: "443",
			guess: "198.19.0.1:443", remember: "198.18.0.6:6443"},
		"a pod that was told what is wrong": {host: "kubernetes", port: "x",
			guess: "198.19.0.1:443", remember: "198.18.0.6:6443"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Config{ServiceProxy: config.ServiceProxyEBPF,
				ServiceRanges: nettest.Prefixes("198.19.0.0/16", "fd42:9::/112")}
			var asked netip.AddrPort
			if c.asked != "" {
				asked = netip.MustParseAddrPort(c.asked)
			}

			told := apiserver.ServiceOfPod(func(name string) string {
				return map[string]string{"KUBERNETES_SERVICE_HOST": c.host,
					"KUBERNETES_SERVICE_PORT": c.port}[name]
			})
			got := apiserver.KnownBefore(cfg, asked, told, nettest.Addrs("198.18.0.6"))
			text := func(addrs []netip.AddrPort) string {
				var out []string
				for _, a := range addrs {
					out = append(out, a.String())
				}
				return strings.Join(out, " ")
			}

			have := []string{text(got.Frontends), text(got.Guessed), text(got.Remembered)}
			if want := []string{c.fronts, c.guess, c.remember}; !slices.Equal(have, want) {
				t.Errorf("sure, guessed and servers are %q, want %q", have, want)
			}

			// A guess may be the address of a service that another proxy serves.
			cfg.ServiceProxy = config.ServiceProxyNone
			if got := apiserver.KnownBefore(cfg, asked, told, nil); len(got.Guessed) > 0 ||
				text(got.Frontends) != c.fronts {
				t.Errorf("beside another proxy: sure %v, guessed %v, want %q and none",
					got.Frontends, got.Guessed, c.fronts)
			}
		})
	}
}

// emptyTable is a service table without entries.
type emptyTable struct{}

func (emptyTable) State() (planner.MapContent, error) { return planner.MapContent{}, nil }
func (emptyTable) Apply(service.Changes) error        { return nil }
func (emptyTable) Attach() error                      { return nil }
func (emptyTable) Fresh() bool                        { return false }

func (emptyTable) Given([]netip.AddrPort) ([]netip.AddrPort, error) { return nil, nil }

// Before the services are listed, an unknown address is not reported as belonging to no service.
func TestPagesBeforeServicesAreListed(t *testing.T) {
	k, err := New(ServiceConfig{Node: "node-1", Limits: service.DefaultLimits, Table: emptyTable{}})
	errtest.Must(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	defer func() { cancel(); <-done }()
	pages := (&Feature{keeper: k}).Pages()
	ask := func(path string) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
		errtest.Must(t, err)
		_, err = pages[r.URL.Path](r)
		return err
	}

	asked := []string{telemetry.ServicePath + "?name=shop/web",
		telemetry.TracePath + "?addr=198.18.0.1:80&protocol=TCP&scope=inside"}
	for _, path := range asked {
		if err := ask(path); !errors.Is(err, errNotListed) {
			t.Errorf("page %s: error %v, want not listed", path, err)
		}
	}

	k.Listed()
	for _, path := range asked {
		if err := ask(path); err == nil || errors.Is(err, errNotListed) {
			t.Errorf("%s, once they are listed: %v", path, err)
		}
	}

	errtest.Check(t, ask(telemetry.ServicesPath))
	if err := ask(telemetry.ServicesPath + "?after=x"); err == nil {
		t.Error("a list after an invalid name has no error")
	}
}

func TestNodePortsAreServedOnPrimaryAddresses(t *testing.T) {
	self := &cluster.Node{Addresses: nettest.Addrs("198.18.0.11", "203.0.113.7", "fd42::b")}
	// The second link is public; lo has an address for all.
	turn := feature.Turn{
		LinkAddrs: nettest.Addrs("198.18.0.11", "fd42::b", "fd42::99"),
		Assigned: nettest.Addrs("10.77.0.1", "198.18.0.11", "203.0.113.7", "203.0.113.8", "fd42::b",
			"fd42::99"),
	}

	for name, c := range map[string]struct {
		ranges []netip.Prefix
		self   *cluster.Node
		want   []netip.Addr
	}{
		"by default":               {self: self, want: nettest.Addrs("198.18.0.11", "fd42::b")},
		"before the Node is known": {want: turn.LinkAddrs},
		"of a Node whose addresses are on another link": {
			self: &cluster.Node{Addresses: nettest.Addrs("203.0.113.7")},
			want: nettest.Addrs("203.0.113.7"),
		},
		"in ranges": {
			self: self, ranges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
			want: nettest.Addrs("203.0.113.7", "203.0.113.8"),
		},
		"everywhere in a family": {
			self: self, ranges: []netip.Prefix{netip.MustParsePrefix("::/0")},
			want: nettest.Addrs("fd42::b", "fd42::99"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			one := turn
			one.Table.Self = c.self
			if got := nodePortAddrs(c.ranges, one); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestTunnelEndpointsAreReserved(t *testing.T) {
	table := cluster.Table{
		NodeAddrs: nettest.Addrs("198.18.0.11", "fd42::b"),
		Peers: []cluster.Node{
			{Claim: &cluster.Claim{Endpoints: []netip.AddrPort{
				netip.MustParseAddrPort("198.18.0.12:7000")}}}, {},
		},
	}
	want := []netip.AddrPort{
		netip.MustParseAddrPort("198.18.0.11:51820"), netip.MustParseAddrPort("198.18.0.12:7000"),
		netip.MustParseAddrPort("[fd42::b]:51820"),
	}
	if got := tunnelEndpoints(table, 51820); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// An uncertain link between nodes may lack addresses. NodePorts keep their addresses then.
func TestNodePortsKeepTheirAddressesWithoutALink(t *testing.T) {
	k, err := New(ServiceConfig{Node: "node-1", Limits: service.DefaultLimits, Table: emptyTable{}})
	errtest.Must(t, err)
	f := &Feature{keeper: k}
	for _, step := range []struct {
		situation string
		addrs     []netip.Addr
		certain   bool
		want      []netip.Addr
	}{
		{"at the start, without a link", nil, false, nil},
		{"a link", nettest.Addrs("198.18.0.11"), true, nettest.Addrs("198.18.0.11")},
		{"the link went away", nil, false, nettest.Addrs("198.18.0.11")},
		{"another address", nettest.Addrs("198.18.0.12"), true, nettest.Addrs("198.18.0.12")},
	} {
		turn := feature.Turn{LinkAddrs: step.addrs, Assigned: step.addrs, Certain: step.certain}
		errtest.Must(t, f.Turn(turn))
		if got := k.inbox.nodes; !slices.Equal(got, step.want) || !k.inbox.nodesSeen {
			t.Errorf("%s: addresses %v, want %v", step.situation, got, step.want)
		}
	}
}

// lostSource is an API server whose feed ends with an error.
type lostSource struct{ Source }

func (lostSource) RunAPIServers(context.Context, service.Sink) error { return errBroken }

// An error of the feed ends veild, and the Keeper with it.
func TestFeatureEndsWithItsFeed(t *testing.T) {
	k, err := New(ServiceConfig{Node: "node-1", Limits: service.APILimits, Table: emptyTable{}})
	errtest.Must(t, err)
	f := &Feature{keeper: k, o: FeatureOptions{Source: lostSource{}}}
	if err := f.Run(t.Context()); !errors.Is(err, errBroken) {
		t.Errorf("error %v, want %v", err, errBroken)
	}
	if err := k.Ask(t.Context(), func(*planner.Planner) {}); !errors.Is(err, errEnded) {
		t.Errorf("the Keeper continues: %v", err)
	}
}

// Without a table, pages show only the reason.
func TestFeatureWithoutATable(t *testing.T) {
	f := &Feature{noAPIPath: NoAPIPath(errBroken), o: FeatureOptions{
		Closed: nettest.Addrs("198.19.199.1"), Last: &cluster.Table{}}}
	var s telemetry.Status
	f.Status(&s)
	if s.Services != nil || !slices.Equal(s.Problems, []string{f.noAPIPath}) {
		t.Errorf("status %+v", s)
	}
	if err := errors.Join(f.Begin(), f.Turn(feature.Turn{}), f.Run(t.Context()),
		f.Close()); err != nil {
		t.Error(err)
	}
	if f.o.Last != nil {
		t.Error("the last good table of the start stays in memory")
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	errtest.Must(t, err)
	for path, page := range f.Pages() {
		if _, err := page(r); !errors.Is(err, errNoServices) {
			t.Errorf("page %s: error %v, want no services", path, err)
		}
	}
}
