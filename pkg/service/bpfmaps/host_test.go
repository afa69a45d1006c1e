package bpfmaps

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// A frontend for the host, here a server's own address, leads TCP sockets of its network namespace
// to its backends. Probes (by their mark), UDP sockets and sockets of other namespaces reach the
// server itself. Without backends, and without programs, all sockets reach the server itself.
func TestFrontendsForTheHost(t *testing.T) {
	cgroup, c := nettest.NewCgroup(t), config(t)
	host, pod := newHands(t, cgroup), newHands(t, cgroup)
	var table *Table
	errtest.Must(t, host.ns.Do(func() (err error) {
		table, err = Open(c)
		return err
	}))
	server := func(addr string) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), 8080)
	}
	leads := func(p *planner.Planner, to ...string) {
		var api service.APIServer
		for i, addr := range []string{"198.18.1.1", "fd42:1::1"} {
			f := service.HostFrontend{Addr: server(addr)}
			if len(to) > 0 {
				f.Backends = []netip.AddrPort{server(to[i])}
			}
			api.Host = append(api.Host, f)
		}
		p.SetAPIServer(api)
	}
	n := startOn(t, table, func(p *planner.Planner) { leads(p, "198.18.1.2", "fd42:1::2") })
	n.attach(t, cgroup)

	expect := func(what string, h *hands, o order, want4, want6 string) {
		t.Helper()
		for addr, want := range map[string]string{"198.18.1.1": want4, "fd42:1::1": want6} {
			o.Do, o.To = "dial", netip.AddrPortFrom(netip.MustParseAddr(addr), o.port()).String()
			if r := h.do(o); r.Err != "" || r.Answer != want || r.Peer != o.To {
				t.Errorf("%s: %s is answered by %+v, want %s", what, o.To, r, want)
			}
		}
	}
	tcp := order{Net: "tcp"}
	expect("host", host, tcp, "198.18.1.2", "fd42:1::2")
	expect("probe", host, order{Net: "tcp", Mark: abi.ProbeMark}, "198.18.1.1", "fd42:1::1")
	expect("probe with more marks", host, order{Net: "tcp", Mark: abi.ProbeMark | 1}, "198.18.1.1",
		"fd42:1::1")
	expect("another mark", host, order{Net: "tcp", Mark: 1}, "198.18.1.2", "fd42:1::2")
	expect("pod", pod, tcp, "198.18.1.1", "fd42:1::1")
	expect("UDP", host, order{Net: "udp"}, "198.18.1.1", "fd42:1::1")

	leads(n.Planner)
	n.apply(t)
	expect("without backends", host, tcp, "198.18.1.1", "fd42:1::1")
	leads(n.Planner, "198.18.1.3", "fd42:1::3")
	n.apply(t)
	expect("with other backends", host, tcp, "198.18.1.3", "fd42:1::3")

	n.Close()
	errtest.Must(t, errtest.Of(Remove(c.Dir)))
	expect("without programs", host, tcp, "198.18.1.1", "fd42:1::1")
}

// port is the port of the backends for the order's network.
func (o order) port() uint16 {
	if o.Net == "udp" {
		return 5353
	}
	return 8080
}
