package drop

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/kfeature"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/guard/sample"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const inRange = "src_in_range"

// guarded is a network namespace with a guard in force, and a peer on its link u0.
type guarded struct {
	*nettest.NS
	t     testing.TB
	peer  *nettest.NS
	guard *guard.Guard
}

func newGuarded(t testing.TB) *guarded {
	t.Helper()
	n := &guarded{NS: nettest.NewNS(t), t: t, peer: nettest.NewNS(t)}
	nettest.Veth(t, nettest.End{NS: n.NS, Name: "u0"}, nettest.End{NS: n.peer, Name: "u0"})
	dir := nettest.BPFFS(t)
	n.Run(t, func() (err error) {
		if n.guard, err = guard.Open(dir, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		_, err = n.guard.Apply(guard.Settings{Ranges: nettest.Prefixes("198.18.0.0/16")})
		return err
	})
	t.Cleanup(func() { _ = n.guard.Close() })
	return n
}

// forge sends datagrams from an address in a cluster range to the node's link, and waits until the
// guard has counted them.
func (n *guarded) forge(times int) {
	n.t.Helper()
	before := n.dropped()
	n.peer.Run(n.t, func() error {
		return nettest.SendFrames("u0", slices.Repeat([][]byte{forged()}, times)...)
	})
	nettest.Until(n.t, patience, "the guard has counted them", func() bool {
		return n.dropped() == before+uint64(times)
	})
}

// forged returns a frame of a datagram from an address in a cluster range.
func forged() []byte { return datagram([4]byte{198, 18, 1, 5}, [4]byte{192, 0, 2, 1}) }

func (n *guarded) dropped() uint64 {
	n.t.Helper()
	counts, err := n.counters()
	errtest.Must(n.t, err)
	return counts[inRange]
}

func (n *guarded) counters() (counts map[string]uint64, err error) {
	err = n.Do(func() error {
		counts, err = n.guard.Counters()
		return err
	})
	return counts, err
}

// veild runs a Feature and passes it to fn.
func (n *guarded) veild(fn func(f *Feature)) {
	n.t.Helper()
	f := NewFeature(FeatureConfig{Reasons: []string{inRange}, Counters: n.counters,
		Ring: n.guard.Samples(), Paths: pod.Paths{PodDir: n.t.TempDir()},
		Log: slog.New(slog.DiscardHandler)})
	n.Run(n.t, f.Begin)
	ctx, cancel := context.WithCancel(n.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = f.Run(ctx) })
	defer func() {
		cancel()
		wg.Wait()
		errtest.Check(n.t, f.Close())
	}()
	fn(f)
}

// shown returns the page that veilctl drops shows.
func (n *guarded) shown(f *Feature) telemetry.Drops {
	n.t.Helper()
	answer, err := f.page(httptest.NewRequest(http.MethodGet, telemetry.DropsPath, nil))
	errtest.Must(n.t, err)
	return answer.(telemetry.Drops)
}

// Samples of BPF programs wait in the ring while no veild runs. The first page of the next veild
// shows each sample once, with the time of the packet.
func TestSamplesOfProgramsWaitForVeild(t *testing.T) {
	n := newGuarded(t)
	for range 2 {
		n.forge(3)
		n.veild(func(f *Feature) {
			d := n.shown(f)
			if len(d.Packets) != 3 {
				t.Fatalf("%d samples, want the 3 that waited", len(d.Packets))
			}
			p := d.Packets[0]
			want := telemetry.DroppedPacket{Number: p.Number, Time: p.Time, Reason: inRange,
				In: "u0", Src: netip.MustParseAddr("198.18.1.5"),
				Dst: netip.MustParseAddr("192.0.2.1"), SrcPort: 0x1000, DstPort: 0x2000,
				Protocol: "udp", Length: 32}
			if fmt.Sprintf("%+v", p) != fmt.Sprintf("%+v", want) || !p.Time.Before(d.Since) {
				t.Errorf("%+v, want %+v", p, want)
			}

			if len(d.Skipped) > 0 {
				t.Errorf("skipped: %v", d.Skipped)
			}
		})
	}
	n.veild(func(f *Feature) {
		if d := n.shown(f); d.Before != 6 || len(d.Packets) != 0 {
			t.Errorf("a third veild: %+v", d)
		}
	})
}

// Each packet that a BPF program drops has a sample or counts as skipped.
func TestSkippedPacketsOfProgramsAreExact(t *testing.T) {
	n := newGuarded(t)
	n.forge(2)
	n.veild(func(f *Feature) {
		const many = 500
		n.forge(many)
		written, err := f.o.Ring.Written()
		errtest.Must(t, err)
		nettest.Until(t, patience, "all samples", func() bool {
			return uint64(len(n.shown(f).Packets)) == written[inRange]
		})
		d := n.shown(f)
		if d.Before != 0 || len(d.Packets) < 10 || d.Skipped[inRange] == 0 ||
			uint64(len(d.Packets))+d.Skipped[inRange] != many+2 {
			t.Errorf("%d samples, %d before, skipped %v", len(d.Packets), d.Before, d.Skipped)
		}
		var s telemetry.Status
		f.Status(&s) // Status counts the packets up to its previous call.
		f.Status(&s)
		if got := s.DropSamples.Skipped[inRange]; got != d.Skipped[inRange] {
			t.Errorf("the metric counts %d skipped packets, want %d", got, d.Skipped[inRange])
		}
	})
}

// The sample of a connection that was refused at a socket names the pod with the socket's network
// namespace, and no other pod.
func TestRefusedSocketNamesItsPod(t *testing.T) {
	f, pods := offline(t, nil), map[string]*nettest.NS{}
	f.o.Reasons = []string{"service_no_backend"}
	for i, name := range []string{"web", "db"} {
		ns := nettest.NewNS(t)
		link := recordOf(t, f.o.Paths.PodDir, name, fmt.Sprintf("198.18.1.%d", 5+i))
		r, err := f.o.Paths.Load(link)
		errtest.Must(t, err)
		r.Netns = ns.Path()
		data, err := json.Marshal(r)
		errtest.Must(t, err)
		filetest.Write(t, filepath.Join(f.o.Paths.PodDir, link+".json"), data, 0o600)
		pods[name] = ns
	}

	for name, ns := range map[string]*nettest.NS{"shop/web": pods["web"], "shop/db": pods["db"],
		"": nettest.NewNS(t)} {
		var cookie uint64
		ns.Run(t, func() (err error) {
			cookie, err = kfeature.NetnsCookie()
			return err
		})
		f.keepSample(sample.Sample{Netns: cookie, Time: time.Now(), Packet: nflog.Packet{
			Prefix: "service_no_backend", Headers: nflog.Headers{DstPort: 80,
				Dst: netip.MustParseAddr("198.18.0.3"), Proto: unix.IPPROTO_TCP}}})
		packets, _ := f.ring.After(0, Size, all)
		if p := packets[len(packets)-1]; p.SrcPod != name || p.Protocol != "tcp" ||
			p.DstPort != 80 || p.In != "" || f.ring.owned[name] != 1 {
			t.Errorf("%+v, want pod %q; owners %v", p, name, f.ring.owned)
		}
	}
}
