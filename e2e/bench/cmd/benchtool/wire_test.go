package main

import (
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kubeveil/kubeveil/e2e/bench/remote"
	"github.com/kubeveil/kubeveil/pkg/netns"
	"github.com/kubeveil/kubeveil/pkg/nettest"
)

// A pod gets its link with routes, twice, and all of it goes again.
func TestVethIntoAPod(t *testing.T) {
	node, pod := nettest.NewNS(t), nettest.NewNS(t)
	l := remote.Link{
		Host: remote.HostClearLink, Pod: remote.ClearLink, MTU: 1400, Addr: netip.MustParseAddr("198.18.192.18"), Gateway: netip.MustParseAddr("198.18.192.17"),
		Routes: []netip.Addr{netip.MustParseAddr("198.18.192.34")},
	}
	inPod, err := os.Open(pod.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer inPod.Close()
	in := func(ns string, fn func() error) {
		t.Helper()
		if err := netns.Do(ns, fn); err != nil {
			t.Fatal(err)
		}
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
			t.Errorf("the pod reaches the other by %v", r)
		}
		link, err := netlink.LinkByName(remote.ClearLink)
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
