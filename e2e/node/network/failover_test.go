package network_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// failoverLimit bounds the time without traffic after the family of a tunnel stops working, on an
// idle machine.
const failoverLimit = 5 * time.Second

// In TestTunnelChangesItsFamily, a node has one address family on each of two NICs. The NIC of the
// tunnel's family fails in several ways and is restored. Pods reach each other by the other family,
// in both directions.
func TestTunnelChangesItsFamily(t *testing.T) {
	nodetest.Alone(t)
	ctx, l := nodetest.AloneLab(t, lab.Options{})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	n := l.Nodes()[0]
	links := splitFamilies(ctx, t, l, n)

	for _, tt := range []struct{ name, cut, mend string }{
		{"the link is down", "link set %[1]s down", "link set %[1]s up"},
		{"the address is gone", "addr del %[2]s dev %[1]s", "addr add %[2]s dev %[1]s"},
		{"the cable is out", "", ""},
	} {
		for _, six := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, %s", tt.name, links[six].name), func(t *testing.T) {
				meetAgain(ctx, t, pods)
				f := links[six]
				change := func(format, port string) {
					at, line := l.Bridge(), fmt.Sprintf("link set %s %s", f.port, port)
					if format != "" {
						at, line = n.Host, fmt.Sprintf(format, f.name, f.addr)
					}
					errtest.Must(t, at.IP(ctx, line))
				}
				before := endpointOf(ctx, t, n)
				gap := silence(ctx, t, pods, func() { change(tt.cut, "down") })
				t.Logf("endpoint on %s: %v, then %v; silent for %v", n.Name, before,
					endpointOf(ctx, t, n), gap)
				if limit := labhost.Slow(failoverLimit); gap > limit {
					t.Errorf("silent for %v, want at most %v", gap, limit)
				}

				change(tt.mend, "up")
				f.restore(ctx, t, n)
				meetAgain(ctx, t, pods)
			})
		}
	}
	nodetest.NoLeaks(t, l)
}

// familyLink is the link that has the node's address of a family.
type familyLink struct {
	// name is the name of the link, and port the switch's port.
	name, port string
	addr       netip.Prefix
	via        netip.Addr
}

// restore adds the default route that the kernel removed with the link or its address.
func (f familyLink) restore(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	errtest.Must(t, n.IP(ctx, fmt.Sprintf("addr replace %s dev %s", f.addr, f.name),
		fmt.Sprintf("route replace default via %s dev %s", f.via, f.name)))
}

// splitFamilies moves the node's IPv4 address to a second NIC, so that the tunnel uses IPv6.
func splitFamilies(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node) map[bool]familyLink {
	t.Helper()
	added, err := n.AddLink(ctx, "eth1")
	errtest.Must(t, err)
	for _, a := range added {
		errtest.Must(t, n.IP(ctx, fmt.Sprintf("addr del %s dev eth1", a)))
	}

	links := map[bool]familyLink{
		false: {"eth1", n.Name + "-eth1", netip.PrefixFrom(n.Addrs[0], 24), l.OutsideAddrs()[0]},
		true:  {"eth0", n.Name, netip.PrefixFrom(n.Addrs[1], 64), l.OutsideAddrs()[1]},
	}
	errtest.Must(t, n.IP(ctx, fmt.Sprintf("addr del %s dev eth0", links[false].addr)))
	for _, f := range links {
		f.restore(ctx, t, n)
	}
	return links
}

// meetAgain waits until the pods reach each other at all addresses.
func meetAgain(ctx context.Context, t *testing.T, pods []*lab.Pod) {
	t.Helper()
	err := lab.Until(ctx, 90*time.Second, func() error {
		if nodetest.Talks(ctx, pods[0], pods[1].Addrs) < len(pods[1].Addrs) ||
			nodetest.Talks(ctx, pods[1], pods[0].Addrs) < len(pods[0].Addrs) {
			return errors.New("the pods do not reach each other at all addresses")
		}
		return nil
	})
	errtest.Must(t, err)
}

// silence returns the longest time in which datagrams of one of the pods did not reach the other
// while cut takes effect.
func silence(ctx context.Context, t *testing.T, pods []*lab.Pod, cut func()) time.Duration {
	t.Helper()
	var sinks, sources []*lab.Process
	for i, p := range pods {
		sink := nodetest.Sink(ctx, t, p)
		sinks = append(sinks, sink)
		sources = append(sources, nodetest.Source(ctx, t, pods[1-i], p.Addrs[0],
			10*time.Millisecond))
		errtest.Must(t, sink.WaitLine(ctx, "received 1", 10*time.Second))
	}

	cut()
	meetAgain(ctx, t, pods)
	var longest time.Duration
	for i := range sinks {
		errtest.Must(t, sources[i].Term(ctx))
		var got traffic.Drained
		errtest.Must(t, sinks[i].Result(ctx, &got))
		longest = max(longest, time.Duration(got.MaxGapMillis*float64(time.Millisecond)))
	}
	return longest
}
