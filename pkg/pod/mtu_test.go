package pod

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

func (n *node) setMTU(r Record, mtu int) (Record, error) {
	var got Record
	err := n.Do(func() (err error) {
		got, err = n.SetMTU(n.t.Context(), r, mtu)
		return err
	})
	return got, err
}

func TestSetMTULive(t *testing.T) {
	n := newNode(t)
	r, ns := newRecord(t, "c1", pod4, pod6)
	n.attach(r, ns)

	for _, mtu := range []int{1280, 8920, 8920, 1420} {
		got, err := n.setMTU(r, mtu)
		if err != nil {
			t.Fatalf("SetMTU %d: %v", mtu, err)
		}
		if got.MTU != mtu {
			t.Errorf("record has mtu %d, want %d", got.MTU, mtu)
		}
		if texts := n.check(got); len(texts) != 0 {
			t.Errorf("after SetMTU %d: %q", mtu, texts)
		}

		for _, a := range got.Addrs {
			away := netip.MustParseAddr(map[bool]string{true: "198.18.9.9",
				false: "fd42:9::9"}[a.Is4()])
			hop, err := nettest.Lookup(ns.Handle(), away, 0)
			if err != nil || hop.MTU != mtu {
				t.Errorf("route of %s has mtu %d (%v), want %d", a, hop.MTU, err, mtu)
			}
		}

		n.must(func() error {
			saved, err := n.Load(r.HostLink)
			if err == nil && saved.MTU != mtu {
				t.Errorf("record on disk has mtu %d, want %d", saved.MTU, mtu)
			}
			return err
		})
	}
}

func TestSetMTURefusals(t *testing.T) {
	n := newNode(t)
	r, ns := newRecord(t, "c1", pod4, pod6)
	if _, err := n.setMTU(r, 1400); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no record: %v, want %v", err, ErrNotFound)
	}
	n.attach(r, ns)
	if _, err := n.setMTU(r, 1279); err == nil || !strings.Contains(err.Error(), "1280") {
		t.Errorf("below what IPv6 needs: %v", err)
	}
	if texts := n.check(r); len(texts) != 0 {
		t.Errorf("after a refused SetMTU: %q", texts)
	}
	n.must(func() error { return deleteLink(r.HostLink) })
	if _, err := n.setMTU(r, 1500); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no link: %v, want %v", err, ErrNotFound)
	}
}
