package network_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// secretCable connects a node to the outside host by a veth pair outside the watched network, like
// a hostile neighbour at a second port. The oracle does not see frames on this link. It returns the
// hardware address of the node's end.
func secretCable(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node,
	near, far string) net.HardwareAddr {
	t.Helper()
	pid := filepath.Base(filepath.Dir(filepath.Dir(n.NetNS())))
	// The process ID belongs to the machine's namespace, so the host's other namespaces are not
	// entered.
	add := exec.CommandContext(ctx, "nsenter", "--net="+l.Outside.NetNS(), "--", "ip", "link",
		"add", far, "up", "type", "veth", "peer", "name", near, "netns", pid)
	if out, err := add.CombinedOutput(); err != nil {
		t.Fatalf("connect %s: %v: %s", near, err, out)
	}
	errtest.Must(t, n.IP(ctx, fmt.Sprintf("link set %s up", near)))
	hw, _ := nodetest.LinkOf(ctx, t, n, near)
	return hw
}

// A link that is added later is guarded in both directions. A route of another program that
// bypasses the tunnel carries no packets of the cluster.
func TestGuardOnLinks(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	n1 := l.Nodes()[0]
	t.Run("a second link to the underlay", func(t *testing.T) {
		began := time.Now()
		errtest.Must(t, errtest.Of(n1.AddLink(ctx, "eth1")))
		guarded(ctx, t, n1, "eth1")
		t.Logf("guarded within %v", time.Since(began).Round(time.Millisecond))
	})

	t.Run("a hostile neighbour", func(t *testing.T) { injectFromOutside(ctx, t, l, pods) })
	for _, link := range []string{"eth0", "eth1"} {
		t.Run("routes past the tunnel by "+link, func(t *testing.T) {
			routePast(ctx, t, l, pods, pastRoutes(pods[1], link))
		})
	}

	// The kernel encapsulates such packets after the last hook of netfilter.
	t.Run("segment routes past the tunnel", func(t *testing.T) {
		errtest.Must(t, n1.IP(ctx, "sr tunsrc set "+n1.Addrs[1].String()))
		before := nodetest.Dropped(ctx, t, n1, "inner_dst_in_range")
		routePast(ctx, t, l, pods, segmentRoutes(l, pods[1]))
		if nodetest.Dropped(ctx, t, n1, "inner_dst_in_range") == before {
			t.Error("no packet inside another was stopped")
		}
	})

	t.Run("without veild", func(t *testing.T) {
		nodetest.KillProgram(ctx, t, n1, "veild")

		// Without a daemon, no BPF program is attached to the new link. Only nftables protects it.
		errtest.Must(t, errtest.Of(n1.AddLink(ctx, "eth2")))
		routes := pastRoutes(pods[1], "eth2")
		errtest.Must(t, n1.IP(ctx, routes...))

		before := droppedByNFT(ctx, t, n1)
		nobodyAnswers(ctx, t, pods[1], pods[0], n1)
		if now := droppedByNFT(ctx, t, n1); now == before {
			t.Error("the nft guard dropped nothing")
		}
		nodetest.StartProgram(ctx, t, n1, "veild")

		guarded(ctx, t, n1, "eth2")
		nobodyAnswers(ctx, t, pods[1], pods[0], n1)
		removeRoutes(ctx, t, n1, routes)
		talk(ctx, t, pods[0], pods[1])
	})

	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// guarded waits until a link is guarded.
func guarded(ctx context.Context, t *testing.T, n *lab.Node, link string) {
	t.Helper()
	nodetest.WaitStatus(ctx, t, n, 10*time.Second, func(s telemetry.Status) error {
		if !slices.Contains(s.Guard.Links, link) {
			return fmt.Errorf("guarded: %v", s.Guard.Links)
		}
		return nil
	})
}

// droppedByNFT returns how many packets the interface-independent guard of a node dropped.
func droppedByNFT(ctx context.Context, t *testing.T, n *lab.Node) (sum uint64) {
	t.Helper()
	for _, word := range regexp.MustCompile(`packets (\d+)`).FindAllStringSubmatch(
		nodetest.Run(ctx, t, n, "nft", "list", "counters", "table", "inet", abi.NFTGuardTable),
		-1) {
		packets, err := strconv.ParseUint(word[1], 10, 64)
		errtest.Must(t, err)
		sum += packets
	}
	return sum
}

// injectFromOutside sends packets to a node's link that may only come out of a tunnel, and checks
// that they are dropped and counted.
func injectFromOutside(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
	n1 := l.Nodes()[0]
	hw := secretCable(ctx, t, l, n1, "eth9", "hostile")
	guarded(ctx, t, n1, "eth9")
	sink := nodetest.Sink(ctx, t, pods[0])

	from, _ := nodetest.LinkOf(ctx, t, l.Outside, "hostile")
	packet := func(src, dst netip.Addr) []byte {
		return nodetest.Datagram{From: from, To: hw, Src: src, Dst: dst, SrcPort: 4000,
			DstPort: traffic.SinkPort, Payload: []byte("01234567" + l.Canary)}.Frame()
	}

	var inside, source, toPod [][]byte
	for i, six := range []bool{false, true} {
		remote, here, node := pods[1].Addr(six), pods[0].Addr(six), n1.Addrs[i]
		source = append(source, packet(remote, node), packet(here, node),
			packet(l.Family().ServiceRanges()[i].Addr().Next(), node))
		inside = append(inside, packet(remote, here))
		toPod = append(toPod, packet(l.OutsideAddrs()[i], here),
			packet(l.Nodes()[1].Addrs[i], here))
	}

	// A VLAN tag or two do not hide it.
	tagged := func(f []byte) []byte { return slices.Concat(f[:12], []byte{0x81, 0, 0, 7}, f[12:]) }
	source = append(source, tagged(source[0]), tagged(tagged(source[0])))
	beforeSource, beforeTo := nodetest.Dropped(ctx, t, n1, "src_in_range"),
		nodetest.Dropped(ctx, t, n1, "dst_in_range")
	nodetest.Inject(ctx, t, l.Outside, "hostile", slices.Concat(source, inside, toPod)...)
	var gotSource, gotTo uint64
	nodetest.Counted(ctx, t, uint64(len(source)+len(inside)+len(toPod)), func() uint64 {
		gotSource, gotTo = nodetest.Dropped(ctx, t, n1, "src_in_range")-beforeSource,
			nodetest.Dropped(ctx, t, n1, "dst_in_range")-beforeTo
		return gotSource + gotTo
	})

	if gotTo < uint64(len(toPod)) {
		t.Errorf("dropped %d by source and %d by destination, of %d to the pod", gotSource, gotTo,
			len(toPod))
	}

	for _, bad := range []struct {
		reason string
		frame  []byte
	}{
		{"ipv4_truncated", packet(pods[1].Addr(false), pods[0].Addr(false))[:14+12]},
		{"ipv6_truncated", packet(pods[1].Addr(true), pods[0].Addr(true))[:14+20]},
		{"vlan_depth", tagged(tagged(tagged(packet(pods[1].Addr(false), pods[0].Addr(false)))))},
	} {
		before := nodetest.Dropped(ctx, t, n1, bad.reason)
		nodetest.Inject(ctx, t, l.Outside, "hostile", bad.frame)
		nodetest.Counted(ctx, t, 1, func() uint64 {
			return nodetest.Dropped(ctx, t, n1, bad.reason) - before
		})
	}

	var got traffic.Drained
	if err := sink.Result(ctx, &got); err != nil || got.Received > 0 {
		t.Errorf("the pod got %+v, %v", got, err)
	}

	t.Logf("dropped %d by source and %d by destination", gotSource, gotTo)
}

// pastRoutes returns lines of ip(8) for routes to a pod past the tunnel, for the node and for its
// pods.
func pastRoutes(p *lab.Pod, link string) []string {
	var lines []string
	for i, a := range p.Addrs {
		for _, table := range []string{"main", fmt.Sprint(abi.TablePod)} {
			lines = append(lines, fmt.Sprintf("route add %s via %s dev %s onlink table %s metric 1",
				netip.PrefixFrom(a, a.BitLen()), p.Node.Addrs[i], link, table))
		}
	}
	return lines
}

// segmentRoutes returns lines of ip(8) for routes to a pod inside packets to a host outside.
func segmentRoutes(l *lab.Lab, p *lab.Pod) []string {
	var lines []string
	for _, a := range p.Addrs {
		for _, table := range []string{"main", fmt.Sprint(abi.TablePod)} {
			lines = append(lines,
				fmt.Sprintf("route add %s encap seg6 mode encap segs %s dev eth0 table %s metric 1",
					netip.PrefixFrom(a, a.BitLen()), l.OutsideAddrs()[1], table))
		}
	}
	return lines
}

func removeRoutes(ctx context.Context, t *testing.T, n *lab.Node, routes []string) {
	t.Helper()
	for _, r := range routes {
		errtest.Check(t, n.IP(ctx, "route del"+r[len("route add"):]))
	}
}

// routePast adds routes to a remote pod that bypass the tunnel, and checks that the guard drops the
// packets.
func routePast(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod, routes []string) {
	t.Helper()
	n1 := l.Nodes()[0]
	count := func() (n uint64) {
		for _, reason := range []string{"src_in_range", "dst_in_range", "pod_to_range",
			"inner_dst_in_range"} {
			n += nodetest.Dropped(ctx, t, n1, reason)
		}
		return n
	}
	before := count()
	errtest.Must(t, n1.IP(ctx, routes...))
	nobodyAnswers(ctx, t, pods[1], pods[0], n1)
	after := count()
	if after == before {
		t.Error("nothing was counted")
	}
	removeRoutes(ctx, t, n1, routes)
	talk(ctx, t, pods[0], pods[1])
	t.Logf("%d packets stopped", after-before)
}

// nobodyAnswers expects that no pod answers; the oracle judges whether the requests were in clear.
func nobodyAnswers(ctx context.Context, t *testing.T, p *lab.Pod, from ...traffic.Place) {
	t.Helper()
	tryAll(ctx, from, p.Addrs, 200*time.Millisecond, func(to netip.Addr, proto string) {
		t.Errorf("an answer came from %s over %s, past the tunnel", to, proto)
	})
}

// tryAll opens a new connection from each place to each address by TCP and UDP. It does so
// concurrently, because it mostly waits. It calls answered, unless nil, for each answer.
func tryAll(ctx context.Context, from []traffic.Place, to []netip.Addr, timeout time.Duration,
	answered func(to netip.Addr, proto string)) {
	var all sync.WaitGroup
	for _, at := range from {
		for _, addr := range to {
			for _, proto := range []string{"tcp", "udp"} {
				all.Go(func() {
					if _, err := traffic.Send(ctx, at, traffic.Exchange{Proto: proto, To: addr,
						Count: 1, Timeout: timeout}); err == nil && answered != nil {
						answered(addr, proto)
					}
				})
			}
		}
	}
	all.Wait()
}
