package keeper

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/conntrack"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// limit runs a Limiter of this many connections until the test ends.
func (n *node) limit(connections int) *conntrack.Limiter {
	l := conntrack.New(conntrack.LimiterConfig{Limit: connections, Log: slog.New(slog.DiscardHandler),
		Pods: func() ([]conntrack.Pod, error) {
			return []conntrack.Pod{{Name: "client", Addrs: addrsOf(1)},
				{Name: "server", Addrs: addrsOf(2)}}, nil
		}})
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	// The Limiter needs its own thread, because the test uses the host's thread meanwhile.
	go func() { done <- n.Host.NS.Do(func() error { return l.Run(ctx) }) }()
	n.t.Cleanup(func() { cancel(); <-done })
	return l
}

// Connections that leave the fast path continue, and count for their pod from then on. The pod
// cannot open more connections, but other pods reach it.
func TestConnectionsOfTheFastPathCountForTheLimit(t *testing.T) {
	n, f := newFastNode(t)
	n.attach("client", 1)
	n.attach("server", 2)
	n.AttachmentsChanged()
	n.step()
	client, server := n.open()
	port90 := netip.MustParseAddrPort("198.18.1.2:90")
	f.opened = []nl.Opened{{Client: netip.MustParseAddrPort(client.LocalAddr().String()),
		Server: port90}}
	for i := range 120 {
		f.opened = append(f.opened, nl.Opened{
			Client: netip.AddrPortFrom(addrsOf(1)[0], uint16(20000+i)), Server: port90})
	}
	l := n.limit(100)
	n.wantTalk("client", 2, true)

	p := denyAll
	p.Rules[policy.Ingress] = []policy.Rule{{Peers: []policy.Peer{{Pods: &policy.Selector{}}}}}
	n.PutPolicy(p)
	n.step()
	nettest.Until(t, 20*time.Second, "the client is limited", func() bool {
		s := l.Status()
		return len(s.Limited) == 1 && s.Limited[0].Pod == "client" && s.Limited[0].Entries >= 121
	})
	n.wantTalk("client", 2, false)
	n.wantTalk("server", 1, true)
	if !says(server, client) || !says(client, server) {
		t.Error("a connection that was open does not go on")
	}
	if s := l.Status(); len(s.Limited) != 1 {
		t.Errorf("limited are %v, want the client alone", s.Limited)
	}
}
