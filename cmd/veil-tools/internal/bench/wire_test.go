package bench

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

// A pod gets its link with routes twice, and everything is removed afterwards.
func TestVethIntoAPod(t *testing.T) {
	node, pod := nettest.NewNS(t), nettest.NewNS(t)
	l := session.Link{
		Host: session.HostClearLink, Pod: session.ClearLink, MTU: 1400,
		Addr: netip.MustParseAddr("198.18.192.18"), Gateway: netip.MustParseAddr("198.18.192.17"),
		Routes: []netip.Addr{netip.MustParseAddr("198.18.192.34")},
	}
	inPod, err := os.Open(pod.Path())
	errtest.Must(t, err)
	defer inPod.Close()

	in := func(ns string, fn func() error) {
		t.Helper()
		errtest.Must(t, netns.Do(ns, fn))
	}

	for range 2 {
		in(node.Path(), func() error { return addVeth(inPod, l) })
	}

	in(pod.Path(), func() error {
		routes, err := netlink.RouteGet(l.Routes[0].AsSlice())
		if err != nil {
			return err
		}
		if r := routes[0]; !r.Gw.Equal(l.Gateway.AsSlice()) || !r.Src.Equal(l.Addr.AsSlice()) {
			t.Errorf("the pod's route to the other pod: %v", r)
		}
		link, err := netlink.LinkByName(session.ClearLink)
		if err == nil && link.Attrs().MTU != 1400 {
			t.Errorf("MTU %d", link.Attrs().MTU)
		}
		return err
	})

	in(node.Path(), func() error {
		for range 2 {
			if err := removeLinks(); err != nil {
				return err
			}
		}
		links, err := netlink.LinkList()
		for _, link := range links {
			if link.Attrs().Name != "lo" {
				t.Errorf("%s is left", link.Attrs().Name)
			}
		}
		return err
	})
}

// Packets of a pod to the service of the bare side reach the endpoint through the namespace of the
// bare device. The namespace is removed with its session.
func TestBareNamespaceTranslatesTheService(t *testing.T) {
	client, server := nettest.NewNS(t), nettest.NewNS(t)
	service, endpoint := netip.MustParseAddr("198.18.192.2"), netip.MustParseAddr("198.18.192.36")
	links := map[*nettest.NS]session.Link{
		client: {Host: session.HostBareLink, Pod: session.BareLink, MTU: 1400,
			Addr:    netip.MustParseAddr("198.18.192.20"),
			Gateway: netip.MustParseAddr("198.18.192.19"),
			Routes:  []netip.Addr{service}},
		server: {Host: session.HostClearLink, Pod: session.BareLink, MTU: 1400, Addr: endpoint,
			Gateway: netip.MustParseAddr("198.18.192.35"),
			Routes:  []netip.Addr{netip.MustParseAddr("198.18.192.20")}},
	}
	n := &node{}
	var err error
	if n.bare, err = netns.New(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(n.close)
	errtest.Must(t, n.inBare(func() error { return forward(service, endpoint) }))

	for pod, l := range links {
		inPod, err := os.Open(pod.Path())
		errtest.Must(t, err)
		defer inPod.Close()
		errtest.Must(t, n.inBare(func() error { return addVeth(inPod, l) }))
	}

	var listener net.Listener
	err = netns.Do(server.Path(), func() (err error) {
		listener, err = net.Listen("tcp",
			netip.AddrPortFrom(endpoint, session.RoundTripsPort).String())
		return err
	})
	errtest.Must(t, err)
	defer listener.Close()

	err = netns.Do(client.Path(), func() error {
		conn, err := net.DialTimeout("tcp",
			netip.AddrPortFrom(service, session.RoundTripsPort).String(), 5*time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		t.Errorf("the service is not reached: %v", err)
	}

	n.close()
	err = netns.Do(client.Path(), func() error {
		if _, err := netlink.LinkByName(session.BareLink); !errors.As(err,
			&netlink.LinkNotFoundError{}) {
			t.Errorf("the pod's link still exists: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
