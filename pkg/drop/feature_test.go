package drop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const patience = 10 * time.Second

// recordOf writes the record of a pod of the namespace shop, and returns its link.
func recordOf(t testing.TB, dir, name string, addrs ...string) string {
	t.Helper()
	r := pod.Record{Network: "kubeveil", ContainerID: "container-of-" + name, IfName: "eth0",
		HostLink: pod.HostLink("container-of-"+name, "eth0"), MTU: 1400,
		Addrs:    nettest.Addrs(addrs...),
		Workload: pod.Workload{Namespace: "shop", Name: name, UID: "uid-of-" + name}}
	data, err := json.Marshal(r)
	errtest.Must(t, err)
	filetest.Write(t, filepath.Join(dir, r.HostLink+".json"), data, 0o600)
	return r.HostLink
}

// node is a network namespace with the guard's nftables table, and a Feature that listens in it.
type node struct {
	*nettest.NS
	t   testing.TB
	dir string
	f   *Feature
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{NS: nettest.NewNS(t), t: t, dir: t.TempDir()}
	n.Run(t, chains.Pods().Replace)
	n.f = NewFeature(FeatureConfig{Reasons: []string{chains.Spoofed, chains.PodLinkLocal},
		Counters: n.counters, Paths: pod.Paths{PodDir: n.dir}, Log: slog.New(slog.DiscardHandler)})
	n.Run(t, n.f.Begin)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.f.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		errtest.Check(t, n.f.Close())
	})
	return n
}

func (n *node) counters() (counts map[string]uint64, err error) {
	err = n.Do(func() error {
		counts, err = nft.Counters(abi.NFTPodTable)
		return err
	})
	return counts, err
}

// addPod adds a pod with its own link. The table does not know the pod's address.
//
//	pod eth0 198.18.<subnet>.6 ── vpod… 198.18.<subnet>.1 node
func (n *node) addPod(name string, subnet byte) *nettest.NS {
	n.t.Helper()
	in := nettest.NewNS(n.t)
	link := recordOf(n.t, n.dir, name, fmt.Sprintf("198.18.%d.5", subnet))
	addr := func(last int) []netip.Prefix {
		return nettest.Prefixes(fmt.Sprintf("198.18.%d.%d/24", subnet, last))
	}
	nettest.Veth(n.t, nettest.End{NS: n.NS, Name: link, Addrs: addr(1)},
		nettest.End{NS: in, Name: "eth0", Addrs: addr(6)})
	n.OnLink(link, func(h *nl.Handle, l nl.Link) error {
		return h.LinkSetGroup(l, int(abi.PodGroup))
	})
	return in
}

// send sends datagrams of 8 bytes from a pod to the node, and returns their source port.
func send(t *testing.T, from *nettest.NS, subnet byte, count int) (port uint16) {
	t.Helper()
	from.Run(t, func() error {
		c, err := net.DialUDP("udp4", nil,
			&net.UDPAddr{IP: net.IPv4(198, 18, subnet, 1), Port: 7777})
		if err != nil {
			return err
		}
		defer c.Close()
		port = c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		for range count {
			if _, err := c.Write([]byte("kubeveil")); err != nil {
				return err
			}
		}
		return nil
	})
	return port
}

// forged returns the samples of datagrams with a forged source from a pod; "" means all pods.
func (n *node) forged(pod string) []telemetry.DroppedPacket {
	packets, _ := n.f.ring.After(0, Size, query{reason: chains.Spoofed, pod: pod}.matches)
	return packets
}

func TestForgedPacketIsSampledWithItsPod(t *testing.T) {
	n := newNode(t)
	web := n.addPod("web", 1)
	port := send(t, web, 1, 1)
	nettest.Until(t, patience, "a sample", func() bool { return len(n.forged("")) > 0 })

	got := n.forged("shop/web")
	if len(got) != 1 {
		t.Fatalf("samples %+v", n.forged(""))
	}
	want := telemetry.DroppedPacket{Number: got[0].Number, Time: got[0].Time,
		Reason: chains.Spoofed, In: pod.HostLink("container-of-web", "eth0"), SrcPod: "shop/web",
		Src: netip.MustParseAddr("198.18.1.6"), Dst: netip.MustParseAddr("198.18.1.1"),
		SrcPort: port, DstPort: 7777, Protocol: "udp", Length: 20 + 8 + 8}
	if fmt.Sprintf("%+v", got[0]) != fmt.Sprintf("%+v", want) {
		t.Errorf("%+v, want %+v", got[0], want)
	}
}

// The kernel samples only some packets of a pod that sends many, and all packets of another pod.
// Every packet has a sample or counts as skipped.
func TestScanOfOnePodLeavesRoomForOthers(t *testing.T) {
	n := newNode(t)
	scanner, quiet := n.addPod("scanner", 1), n.addPod("quiet", 2)
	for subnet, pod := range map[byte]*nettest.NS{1: scanner, 2: quiet} { // They learn a neighbour.
		before := len(n.forged(""))
		send(t, pod, subnet, 1)
		nettest.Until(t, patience, "a first sample", func() bool {
			return len(n.forged("")) > before
		})
	}
	const many = 2000
	send(t, scanner, 1, many)
	send(t, quiet, 2, 3)
	send(t, scanner, 1, many)

	nettest.Until(t, patience, "samples of the quiet pod", func() bool {
		return len(n.forged("shop/quiet")) == 4
	})
	noisy := len(n.forged("shop/scanner"))
	if noisy == 0 || noisy > 100 {
		t.Errorf("%d samples of the scanner, want some and at most its share", noisy)
	}

	var dropped, skipped uint64
	nettest.Until(t, patience, "the count", func() bool {
		counts, err := n.f.counts()
		errtest.Must(t, err)
		dropped, skipped = counts.dropped[chains.Spoofed], n.f.tally.skipped(counts)[chains.Spoofed]
		return dropped >= 2*many && uint64(len(n.forged("")))+skipped == dropped
	})
	var s telemetry.Status
	n.f.Status(&s) // Status counts the packets up to its previous call.
	n.f.Status(&s)
	if got := s.DropSamples.Skipped[chains.Spoofed]; got != skipped {
		t.Errorf("the metric counts %d skipped packets of %d, want %d", got, dropped, skipped)
	}
}

// A second listener of the group gets no samples, and its page contains the reason.
func TestWithoutTheKernelsLogThePageSaysWhy(t *testing.T) {
	n := newNode(t)
	second := NewFeature(FeatureConfig{Counters: n.counters, Log: slog.New(slog.DiscardHandler)})
	n.Run(t, second.Begin)
	defer second.Close()
	answer, err := second.page(httptest.NewRequest(http.MethodGet, telemetry.DropsPath, nil))
	errtest.Must(t, err)
	d := answer.(telemetry.Drops)
	if !d.Since.IsZero() || !strings.Contains(d.Problem, "another program listens to group 119") {
		t.Errorf("%+v", d)
	}
	var s telemetry.Status
	second.PoliciesSampled(errors.New("group 118 is taken"))
	if second.Status(&s); s.DropSamples == nil || s.DropSamples.Skipped != nil ||
		!strings.Contains(s.DropSamples.Problem, "group 119") ||
		!strings.HasSuffix(s.DropSamples.Problem, "; group 118 is taken") {
		t.Errorf("status %+v", s.DropSamples)
	}
}

// offline returns a Feature that does not listen, and finds only the given links.
func offline(t *testing.T, links map[int]link) *Feature {
	t.Helper()
	f := NewFeature(FeatureConfig{Reasons: []string{"to_loopback", "policy_ingress"},
		Counters: func() (map[string]uint64, error) {
			return map[string]uint64{"to_loopback": 3, "marks_restored": 7}, nil
		},
		Paths: pod.Paths{PodDir: t.TempDir()}, Log: slog.New(slog.DiscardHandler)})
	f.names.find = func(index int) (link, error) {
		l, ok := links[index]
		if !ok {
			return l, nl.ErrNotFound
		}
		return l, nil
	}
	return f
}

func packet(src, dst string, in, out int) nflog.Packet {
	return nflog.Packet{In: in, Out: out, Headers: nflog.Headers{Src: netip.MustParseAddr(src),
		Dst: netip.MustParseAddr(dst), Proto: unix.IPPROTO_TCP, SrcPort: 4000, DstPort: 80,
		Length: 60}}
}

// The sender's pod follows from its link, and in a tunnel from its source address. Otherwise, an
// address alone only names the pod that would have received the packet.
func TestWhoseIsADroppedPacket(t *testing.T) {
	f := offline(t, nil)
	dir := f.o.Paths.PodDir
	web := recordOf(t, dir, "web", "198.18.1.5", "fd42:1::5")
	db := recordOf(t, dir, "db", "198.18.1.7")
	links := map[int]link{2: {"eth0", 0}, 3: {web, abi.PodGroup}, 4: {db, abi.PodGroup},
		5: {"veil0", abi.TunnelGroup}, 6: {"vpod00000000000", abi.PodGroup}}
	f.names.find = func(index int) (link, error) { return links[index], nil }
	if err := f.Turn(feature.Turn{Table: cluster.Table{Peers: []cluster.Node{{Name: "node-2",
		Addresses:   nettest.Addrs("198.19.0.2"),
		PodPrefixes: nettest.Prefixes("198.18.2.0/24")}}}}); err != nil {
		t.Fatal(err)
	}
	// A turn in which no node has moved changes no name.
	if err := f.Turn(feature.Turn{SamePlaces: true}); err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		p                nflog.Packet
		known            telemetry.DroppedPacket
		from, to, peer   string
		in, out, ownedBy string
	}{
		"pod to pod": {packet("198.18.1.5", "198.18.1.7", 3, 4), telemetry.DroppedPacket{},
			"shop/web", "shop/db", "", web, db, web},
		"a pod that forges": {packet("198.18.1.7", "198.18.2.7", 3, 0), telemetry.DroppedPacket{},
			"shop/web", "", "node-2", web, "", web},
		"out of a tunnel": {packet("198.18.2.9", "198.18.1.7", 5, 4),
			telemetry.DroppedPacket{SrcPod: "shop/far"}, "shop/far", "shop/db", "node-2", "veil0",
			db, "198.18.2.9"},
		"a forger outside": {packet("198.18.1.5", "198.18.1.7", 2, 0), telemetry.DroppedPacket{},
			"", "shop/db", "", "eth0", "", "eth0"},
		"a process to a node": {packet("198.19.0.1", "198.19.0.2", 0, 2), telemetry.DroppedPacket{},
			"", "", "node-2", "", "eth0", ""},
		"a pod without a record": {packet("198.18.1.9", "192.0.2.1", 6, 2),
			telemetry.DroppedPacket{}, "vpod00000000000", "", "", "vpod00000000000", "eth0",
			"vpod00000000000"},
		"a link that is gone": {packet("198.18.1.9", "192.0.2.1", 9, 2), telemetry.DroppedPacket{},
			"", "", "", "link 9", "eth0", "link 9"},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.known
			got.Time = time.Now()
			owner := f.nameLocked(c.p, &got)
			if got.SrcPod != c.from || got.DstPod != c.to || got.Peer != c.peer || got.In != c.in ||
				got.Out != c.out || owner != c.ownedBy {
				t.Errorf("%+v of %q", got, owner)
			}
		})
	}
}
