package leak

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// cable is a veth whose end "orb" an Oracle can watch; transmit sends frames from the other end.
type cable struct {
	a, b *nettest.NS
}

func newCable(t *testing.T) cable {
	t.Helper()
	c := cable{nettest.NewNS(t), nettest.NewNS(t)}
	nettest.Sysctl(t, c.a, "ipv6/conf/all/disable_ipv6", "1")
	nettest.Sysctl(t, c.b, "ipv6/conf/all/disable_ipv6", "1")
	nettest.Veth(t, nettest.End{NS: c.a, Name: "ora"}, nettest.End{NS: c.b, Name: "orb"})
	return c
}

func (c cable) path() string { return fmt.Sprintf("/proc/self/fd/%d", c.b.Fd()) }

func (c cable) transmit(t *testing.T, frames ...[]byte) {
	t.Helper()
	c.a.Run(t, func() error { return nettest.SendFrames("ora", frames...) })
}

// watch returns an oracle that watches the cable.
func (c cable) watch(t *testing.T) *Oracle {
	t.Helper()
	o, err := Start(c.path(), *testRules())
	errtest.Must(t, err)
	errtest.Must(t, o.Watch("orb"))
	return o
}

func TestOracleJudgesEveryFrame(t *testing.T) {
	c := newCable(t)
	o := c.watch(t)

	tunnel := eth(etherIPv4, ip4(node1, node2, UDP, udp(51820, 51820, wg(4, 1024))))
	leak := vlan(etherVLAN, etherIPv4,
		ip4(pod1, pod2, TCP, tcp(1, 2, []byte("hello, hello, hello, hello, hello"))))
	var frames [][]byte
	for range 5000 {
		frames = append(frames, tunnel)
	}

	c.transmit(t, append(frames, leak)...)
	r, err := o.Stop()
	errtest.Must(t, err)
	if r.Frames != 5001 || r.Kinds[Tunnel] != 5000 || r.Kinds[LeakAddress] != 1 ||
		r.Plaintext != 1 || r.Dropped != 0 {
		t.Errorf("result: %+v", r)
	}
	if len(r.Examples) != 1 || string(r.Examples[0].Bytes) != string(leak) {
		t.Errorf("example is not the frame, its VLAN tag included: %+v", r.Examples)
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), pod1) {
		t.Errorf("error does not name the pod: %v", err)
	}

	again, err := o.Stop()
	if err != nil || again.Frames != r.Frames {
		t.Errorf("second Stop: %v, %v", again.Frames, err)
	}
	if err := o.Watch("orb"); err == nil {
		t.Error("watching after Stop returned no error")
	}
}

// Frames that a link carried count also when the link is gone.
func TestOracleOutlivesALink(t *testing.T) {
	c := newCable(t)
	o := c.watch(t)
	c.transmit(t, eth(etherIPv4, ip4(pod1, pod2, TCP, tcp(1, 2, nil))))
	// The kernel drops frames that wait for delivery when a link is deleted.
	nettest.Until(t, 10*time.Second, "the frame is seen",
		func() bool { return o.Seen().Frames == 1 })
	c.b.OnLink("orb", func(h *nl.Handle, l nl.Link) error { return h.LinkDel(l) })
	r, err := o.Stop()
	errtest.Must(t, err)
	if r.Plaintext != 1 || r.Dropped != 0 {
		t.Errorf("result: %+v", r)
	}
}

// A ring without a reader fills up; the frames that did not fit are counted and fail the run.
func TestOracleCountsDrops(t *testing.T) {
	c := newCable(t)
	var r *ring
	c.b.Run(t, func() error {
		var err error
		r, err = openRing("orb", 2)
		return err
	})
	frame := eth(etherIPv4, ip4(node1, node2, UDP, udp(51820, 51820, wg(4, 1400))))

	// The kernel drops frames if more than net.core.netdev_max_backlog wait, by default 1,000.
	const frames, batch = 4000, 500
	for sent := batch; sent <= frames; sent += batch {
		c.transmit(t, slices.Repeat([][]byte{frame}, batch)...)
		nettest.Until(t, 10*time.Second, "the frames arrive", func() (all bool) {
			c.b.OnLink("orb", func(_ *nl.Handle, l nl.Link) error {
				all = l.Attrs().Statistics.RxPackets >= uint64(sent)
				return nil
			})
			return all
		})
	}
	o := &Oracle{netns: c.path(), stop: make(chan struct{}), kept: map[string]int{},
		seen: Result{Kinds: map[Kind]uint64{}}}
	o.rules.Store(testRules())
	o.rings = append(o.rings, r)
	o.done.Add(1)
	go o.read(r)
	result, err := o.Stop()
	errtest.Must(t, err)
	if result.Dropped == 0 || result.Frames+result.Dropped != frames {
		t.Errorf("%d judged and %d dropped of %d", result.Frames, result.Dropped, frames)
	}

	if err := result.Err(); err == nil || !strings.Contains(err.Error(), "nothing is proven") {
		t.Errorf("drops returned no error: %v", err)
	}
}

func TestResultErr(t *testing.T) {
	for name, c := range map[string]struct {
		result Result
		want   string
	}{
		"nothing seen": {Result{}, "no frame was seen"},
		"all allowed":  {Result{Frames: 3, Kinds: map[Kind]uint64{Tunnel: 2, Egress: 1}}, ""},
		"dropped": {Result{Frames: 3, Dropped: 1, Kinds: map[Kind]uint64{Tunnel: 3}},
			"1 of 4 frames"},
		"a finding, and dropped": {Result{Frames: 3, Dropped: 1,
			Kinds: map[Kind]uint64{Tunnel: 2, Unknown: 1}}, "1 findings"},
		"a finding, no leak": {Result{Frames: 3, Kinds: map[Kind]uint64{Tunnel: 2, Unknown: 1}},
			"1 findings"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.result.Err()
			if c.want == "" && err != nil ||
				c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func BenchmarkClassify(b *testing.B) {
	frame := eth(etherIPv4, ip4(node1, node2, UDP, udp(51820, 51820, wg(4, 1440))))
	r := testRules()
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		if Classify(r, frame).Kind != Tunnel {
			b.Fatal("no tunnel")
		}
	}
}
