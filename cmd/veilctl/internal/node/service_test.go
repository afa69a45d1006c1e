package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// serviceDaemon is a veild with one service. The service has a ready and a terminating backend.
func serviceDaemon(t *testing.T, change func(*service.Service)) string {
	t.Helper()
	return serviceDaemonOn(t, "node-1", change)
}

func serviceDaemonOn(t *testing.T, node string, change func(*service.Service)) string {
	t.Helper()
	p, err := planner.New(node, service.Limits{
		Frontends: 1 << 10, BackendSlots: 1 << 12,
		SourceRanges: 1 << 8})
	errtest.Must(t, err)

	name := service.Name{Namespace: "shop", Name: "web"}
	s := service.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("198.18.128.10")},
		Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 30080}}}
	if change != nil {
		change(&s)
	}

	p.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("198.18.0.11")})
	p.PutService(s)
	p.PutSlice(service.Slice{Service: name, Name: "web-1",
		Ports: []service.SlicePort{{Name: "http", Protocol: service.TCP, Port: 8080}},
		Endpoints: service.EndpointsOf(
			service.Endpoint{Addr: netip.MustParseAddr("198.19.2.2"), Node: "node-2", Ready: true,
				Serving: true},
			service.Endpoint{Addr: netip.MustParseAddr("198.19.1.2"), Node: "node-1", Serving: true,
				Terminating: true})})
	p.SetAPIServer(service.APIServer{Host: []service.HostFrontend{
		{Addr: netip.MustParseAddrPort("198.18.0.8:6443")},
		{Addr: netip.MustParseAddrPort("198.18.0.9:6443"),
			Backends: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:6443")}}}})
	p.Plan()
	return verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.ServicesPath: func(r *http.Request) (any, error) {
			var after service.Name
			if text := r.FormValue("after"); text != "" {
				if err := after.UnmarshalText([]byte(text)); err != nil {
					return nil, err
				}
			}
			return planner.List(after, func(f func(*planner.Planner)) error { f(p); return nil })
		},
		telemetry.ServicePath: func(r *http.Request) (any, error) {
			if r.FormValue("name") != name.String() {
				return nil, errors.New("no service of this name")
			}
			v, _ := p.View(name)
			return v, nil
		},
		telemetry.TracePath: func(r *http.Request) (any, error) {
			var scope service.Scope
			if err := scope.UnmarshalText([]byte(r.FormValue("scope"))); err != nil {
				return nil, err
			}
			f, ok := p.At(netip.MustParseAddrPort(r.FormValue("addr")), service.TCP, scope)
			if !ok {
				return nil, errors.New("it is no service's")
			}
			return f, nil
		},
	})
}

func TestServiceVerbs(t *testing.T) {
	cluster := serviceDaemon(t, nil)
	local := serviceDaemon(t, func(s *service.Service) { s.ExternalLocal = true })
	away := serviceDaemonOn(t, "node-3", func(s *service.Service) {
		s.ExternalLocal, s.InternalLocal = true, true
	})

	sctp := serviceDaemon(t, func(s *service.Service) { s.Ports[0].Protocol = service.SCTP })
	for name, c := range map[string]struct {
		socket string
		args   []string
		want   []string
		status int
	}{
		"list": {cluster, []string{"list"},
			[]string{"shop/web", "ClusterIP", "NodePort", "198.18.0.11:30080", "anywhere",
				"1 of 2", "198.18.0.9:6443", "host"}, verb.ExitOK},
		"list with a problem": {sctp, []string{"list"}, []string{"PROBLEM", "SCTP"},
			verb.ExitWrong},
		"show": {cluster, []string{"show", "shop/web"},
			[]string{"198.18.128.10:80 TCP, from inside", "each connection gets one of 1",
				"it is terminating"}, verb.ExitOK},
		"show nobody": {cluster, []string{"show", "shop/none"}, nil, verb.ExitWrong},
		"show what":   {cluster, []string{"show"}, nil, verb.ExitUsage},
		"trace": {cluster, []string{"trace", "198.18.128.10:80"},
			[]string{"is the ClusterIP of shop/web", "yes", "198.19.2.2:8080", "node-2", "ready"},
			verb.ExitOK},
		"trace from the host": {cluster, []string{"trace", "198.18.0.9:6443", "--host"},
			[]string{"from the node's own programs, is the API server of (API servers)",
				"gets one of 1", "198.18.0.1:6443", "its certificate names the address"},
			verb.ExitOK},
		"trace from the host, of no certificate": {cluster,
			[]string{"trace", "198.18.0.8:6443", "--host"},
			[]string{"no API server's certificate names the address"}, verb.ExitOK},
		"trace from two places": {cluster,
			[]string{"trace", "198.18.0.9:6443", "--host", "--outside"}, nil, verb.ExitUsage},
		"trace from outside": {local, []string{"trace", "198.18.0.11:30080", "--outside"},
			[]string{"the policy is Local", "it is terminating and still serves", "not on this node"},
			verb.ExitOK},
		"trace from inside, none here": {away, []string{"trace", "198.18.128.10:80"},
			[]string{"the policy is Local", "no backend: connections are refused at once"},
			verb.ExitOK},
		"trace from outside, none here": {away, []string{"trace", "198.18.0.11:30080", "--outside"},
			[]string{"outside are dropped", "pods of other nodes are refused"}, verb.ExitOK},
		"trace another address": {cluster, []string{"trace", "198.18.128.99:80"}, nil,
			verb.ExitWrong},
		"trace an invalid address": {cluster, []string{"trace", "web"}, nil, verb.ExitUsage},
		"without veild":            {"/nowhere/s", []string{"list"}, nil, verb.ExitNoDaemon},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(context.Background(), append(append([]string{"service"}, c.args...),
				"--socket", c.socket), &out, io.Discard)
			if got := verb.ExitStatus(err); got != c.status {
				t.Errorf("exit status %d (%v), want %d", got, err, c.status)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in:\n%s", want, out.String())
				}
			}
		})
	}
}

// If another program translates services, the status shows that veild translates only the service
// of the API servers.
func TestServicesLineBesideAnotherProxy(t *testing.T) {
	got := servicesLine(&telemetry.Services{APIOnly: true, Listed: true, Known: 1,
		APIServers: []telemetry.APIServer{
			{Addr: netip.MustParseAddrPort("198.18.0.2:6443"), Up: true, State: "good", Connections: 3},
			{Addr: netip.MustParseAddrPort("198.18.0.3:6443"), State: "silent"}}})
	const want = "by another program; 1 of 2 API servers answer (198.18.0.2:6443: 3 connections; " +
		"198.18.0.3:6443: silent, 0 connections)"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestServicesAreCompleted(t *testing.T) {
	for name, tt := range map[string]struct{ socket, want string }{
		"a service": {serviceDaemon(t, nil), "shop/web\n:4"},
		"no daemon": {filepath.Join(t.TempDir(), "none"), ":4"},
	} {
		t.Run(name, func(t *testing.T) {
			line := "service show --socket " + tt.socket + " "
			if got := verbtest.Completed(t, line, Service()); got != tt.want {
				t.Errorf("completed to %q, want %q", got, tt.want)
			}
		})
	}
}
