package link

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// tell sends a datagram and waits for no answer.
func tell(t *testing.T, ns *nettest.NS, to string) {
	t.Helper()
	ns.Run(t, func() error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("?\n"))
		return err
	})
}

// A datagram to a program of the node, as to a node-local DNS cache, leaves the pod on the fast
// path.
func TestDatagramToTheNodeKeepsTheFastPath(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		nettest.AddAddr(t, r.host, "lo", netip.MustParsePrefix("169.254.20.10/32"))
		r.nft(t, seeFromPod)
		tell(t, r.pod, "169.254.20.10:53")
		tell(t, r.pod, "[fd42:9::1]:53")
		for _, to := range otherAt {
			ask(t, r.pod, "tcp", to, "8080", "")
			ask(t, r.pod, "udp", to, "5353", "")
		}
		if n := r.count(t, seen); n > 0 {
			t.Errorf("netfilter met %d packets between pods", n)
		}
	})
}

// seeFromPod counts, in netfilter, the datagrams and SYNs that pods send to each other. Later
// segments of an earlier connection do not count.
const seeFromPod = `chain f { type filter hook forward priority 0;
	iifname "vpod*" oifname "vpod*" meta l4proto udp counter name "seen";
	iifname "vpod*" oifname "vpod*" tcp flags & syn == syn counter name "seen"; };`

// dnat is what portmap does: port 9000 of the node is a port of the pod other.
const dnat = `chain d { type nat hook prerouting priority dstnat;
	ip daddr 198.19.0.1 tcp dport 9000 dnat ip to 198.18.3.6:8080;
	ip daddr 198.19.0.1 udp dport 9000 dnat ip to 198.18.3.6:5353;
	ip6 daddr fd42:9::1 tcp dport 9000 dnat ip6 to [fd42:1:0:3::6]:8080;
	ip6 daddr fd42:9::1 udp dport 9000 dnat ip6 to [fd42:1:0:3::6]:5353; };`

// records are the plugin's records by link. Others do not exist.
type records map[string]pod.Record

func (r records) Load(link string) (pod.Record, error) {
	if found, ok := r[link]; ok {
		return found, nil
	}
	return pod.Record{}, pod.ErrNotFound
}

// recorded returns the records of the two pods. The pod other has the host ports of dnat.
func recorded() records {
	return records{
		"vpod1": {Addrs: nettest.Addrs("198.18.1.5", "fd42:1::5"), HostPorts: []pod.HostPort{}},
		"vpod2": {Addrs: nettest.Addrs(otherAt...), HostPorts: []pod.HostPort{
			{Port: 9000, PodPort: 8080},
			{Port: 9000, PodPort: 5353, UDP: true, Addr: netip.MustParseAddr("198.19.0.1")},
			{Port: 9000, PodPort: 5353, UDP: true, Addr: netip.MustParseAddr("fd42:9::1")},
		}},
	}
}

// nodeAt are the node's addresses.
var nodeAt = []string{"198.19.0.1", "fd42:9::1"}

// newRecorded is a routed host with the plugin's records of pods.
func newRecorded(t *testing.T, withTCX, hostRouting bool) *routed {
	t.Helper()
	r := newUnattached(t)
	r.records = recorded()
	r.start(t, withTCX, hostRouting)
	return r
}

// newPublished is a routed host whose pod other has host ports.
func newPublished(t *testing.T, withTCX, hostRouting bool) *routed {
	t.Helper()
	r := newRecorded(t, withTCX, hostRouting)
	r.nft(t, dnat+seeFromPod)
	return r
}

// expectPath checks whether netfilter sees the packets of a connection between two pods.
func (r *routed) expectPath(t *testing.T, when string, from *nettest.NS, network, to, port string,
	slow bool) {
	t.Helper()
	before := r.count(t, seen)
	ask(t, from, network, to, port, "")
	if n := r.count(t, seen) - before; (n > 0) != slow {
		t.Errorf("%s: %s to %s:%s: netfilter met %d packets", when, network, to, port, n)
	}
}

// hostPortsUsed returns how many pods left the fast path to another for its host port.
func (r *routed) hostPortsUsed(t *testing.T) (n uint64) {
	t.Helper()
	counters, err := r.Counters()
	errtest.Must(t, err)
	for _, c := range counters {
		if c.Constant == "PACKET_HOST_PORT" {
			n = c.Count
		}
	}
	return n
}

// TestHostPortTakesOneClientFromTheFastPath has netfilter redirect packets for the host to a pod.
// Netfilter must then see that pod's answers to the client, and sees nothing else.
func TestHostPortTakesOneClientFromTheFastPath(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newPublished(t, withTCX, true)
		client := []string{"198.18.1.5", "fd42:1::5"}
		var open []flow
		for i, to := range otherAt {
			c := hold(t, r.pod, to, "8080")
			open = append(open, flow{c, c.LocalAddr().String()})
			r.expectPath(t, "before", r.pod, "tcp", to, "8080", false)
			r.expectPath(t, "before", r.pod, "udp", to, "5353", false)
			tell(t, r.pod, net.JoinHostPort(nodeAt[i], "9001")) // no host port
			r.expectPath(t, "after another port", r.pod, "tcp", to, "8080", false)
		}
		for i, to := range nodeAt {
			source := client[i] + ":"
			if strings.Contains(client[i], ":") {
				source = "[" + client[i] + "]:"
			}
			ask(t, r.pod, "udp", to, "9000", source)
			r.expectPath(t, "UDP used it", r.pod, "udp", otherAt[i], "5353", true)
			r.expectPath(t, "UDP used it", r.pod, "tcp", otherAt[i], "8080", false)
			r.expectPath(t, "UDP used it", r.other, "udp", client[i], "5353", false)
			ask(t, r.pod, "tcp", to, "9000", source)
			ask(t, r.pod, "tcp", to, "9000", source)
			r.expectPath(t, "TCP used it", r.pod, "tcp", otherAt[i], "8080", true)
			r.expectPath(t, "TCP used it", r.other, "tcp", client[i], "8080", false)
		}
		if n := r.hostPortsUsed(t); n != 4 {
			t.Errorf("%d times a pod left the fast path to another, want 4", n)
		}
		expectGoOn(t, "after that", open)

		r.ageDNAT(t, 2*86400)
		for _, to := range otherAt {
			r.expectPath(t, "two days later", r.pod, "udp", to, "5353", false)
			r.expectPath(t, "two days later", r.pod, "tcp", to, "8080", false)
		}
	})
}

// dnats returns the pods that used a host port of another pod, as text.
func (r *routed) dnats(t *testing.T) map[string]dnatKey {
	t.Helper()
	found := map[string]dnatKey{}
	errtest.Must(t, bpfmaps.Each(r.Table, mapDNAT, func(k dnatKey, _ uint32) bool {
		text := fmt.Sprintf("%s > %s %d", netip.AddrFrom16(k.Client).Unmap(),
			service.AddrPortOf(k.Pod, k.Port), k.Proto)
		found[text] = k
		return true
	}))
	return found
}

// ageDNAT makes the uses of host ports older by seconds.
func (r *routed) ageDNAT(t *testing.T, seconds uint32) {
	t.Helper()
	for _, k := range r.dnats(t) {
		var used uint32
		errtest.Must(t, r.Map(mapDNAT).Lookup(k, &used))
		errtest.Must(t, r.Map(mapDNAT).Put(k, used-seconds))
	}
}

// A connection through netfilter's DNAT goes on when host routing begins, even if the server is the
// first to send.
func TestConnectionsThroughDNATStayOnTheSlowPath(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newPublished(t, withTCX, false)
		var open []flow
		for _, to := range nodeAt {
			c := hold(t, r.pod, to, "9000")
			open = append(open, flow{c, c.LocalAddr().String()})
		}
		r.reload(t, true)
		used := r.dnats(t)
		for _, want := range []string{"198.18.1.5 > 198.18.3.6:8080 6",
			"fd42:1::5 > [fd42:1:0:3::6]:8080 6"} {
			if _, has := used[want]; !has || len(used) != 2 {
				t.Errorf("%v use host ports, want %s", used, want)
			}
		}
		r.nft(t, seeAll)
		expectGoOn(t, "with host routing", open)
		if r.count(t, seen) == 0 {
			t.Error("netfilter met none of their packets")
		}
	})
}

// What a pod with unknown host ports sends takes the slow path. Host ports go with their link.
func TestPodWithUnknownHostPortsSendsOnTheSlowPath(t *testing.T) {
	nettest.NeedBPF(t)
	r := newPublished(t, true, true)
	r.expectRoutes(t, "all are known", map[string]uint8{"vpod1": wholePod, "vpod2": wholePod})
	index := r.index(t, "vpod2")

	unknown := recorded()
	older := unknown["vpod1"]
	older.HostPorts = nil
	unknown["vpod1"] = older
	delete(unknown, "vpod2")
	r.records = unknown
	r.reload(t, true)
	r.expectRoutes(t, "records of an earlier version, and none",
		map[string]uint8{"vpod1": 0, "vpod2": 0})
	if n := r.hostPorts(t); n > 0 {
		t.Errorf("%d host ports of a pod without a record", n)
	}

	r.records = recorded()
	r.reload(t, true)
	if n := r.hostPorts(t); n != 4 {
		t.Errorf("%d host ports, want 4", n)
	}
	r.ip(t, "link del vpod2")
	r.linked.attach(t)
	var how uint8
	if err := r.Map(mapRoutes).Lookup(index, &how); err == nil || r.hostPorts(t) > 0 {
		t.Errorf("the pod is gone: %d host ports, routes %04b", r.hostPorts(t), how)
	}
}

// hostPorts returns the number of host ports that programs know.
func (r *routed) hostPorts(t *testing.T) (n int) {
	t.Helper()
	errtest.Must(t, bpfmaps.Each(r.Table, mapPorts, func(portKey, portPod) bool {
		n++
		return true
	}))
	return n
}
