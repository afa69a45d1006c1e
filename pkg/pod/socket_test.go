package pod

import (
	"testing"

	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
)

// Before the kernel closes a socket of nftables, it frees the objects that the transactions of all
// programs removed, which takes 20 to 40 ms. So each verb opens only one.
func TestVerbsOpenOneSocketOfNftables(t *testing.T) {
	sockets := podtest.CountSockets(t)
	n, first, firstNS := newReserved(t)
	second, secondNS := newRecord(t, "c2", pod6.Next())
	n.attach(second, secondNS)
	both := []Record{first, second}
	unset := func() {
		for _, r := range both {
			n.must(func() error { return unsetAddrs(r.HostLink) })
		}
	}

	for _, verb := range []struct {
		name   string
		before func()
		do     func() error
	}{
		{"attach", nil, func() error { return n.Attach(first, firstNS.Fd(), &Undo{}) }},
		{"check", nil, func() error { _, err := n.Check(first, first.Netns); return err }},
		{"repair nothing", nil, func() error { _, err := n.RepairAll(t.Context(), both); return err }},
		{"repair two", unset, func() error { _, err := n.RepairAll(t.Context(), both); return err }},
		{"repair named", unset, func() error {
			_, err := n.RepairNamed(t.Context(), []string{first.HostLink, second.HostLink})
			return err
		}},
		{"detach", nil, func() error { return n.Detach(first.HostLink) }},
		{"detach again", nil, func() error { return n.Detach(first.HostLink) }},
		{"prune", nil, n.PruneAddrs},
	} {
		if verb.before != nil {
			verb.before()
		}
		n.must(func() error {
			opened, err := sockets.Of(verb.do)
			if err == nil && opened != 1 {
				t.Errorf("%s: %d sockets of nftables, want 1", verb.name, opened)
			}
			return err
		})
	}
}
