package drop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/guard/sample"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// retry is the pause before the Feature tries again to listen.
const retry = 30 * time.Second

// FeatureConfig configures a Feature.
type FeatureConfig struct {
	// Reasons are the names of all drop reasons that samples may have.
	Reasons []string
	// Counters returns a new map with the number of dropped packets by reason. The map may also
	// contain other counters.
	Counters func() (map[string]uint64, error)
	// Tunnels returns the packets that veil-wg dropped, by reason. They have no samples. Nil means
	// that they are not counted.
	Tunnels func() (map[string]uint64, error)
	// Ring receives the samples of BPF programs. The zero value means that no program writes
	// samples.
	Ring  sample.Ring
	Paths pod.Paths
	Log   *slog.Logger
}

// Feature samples dropped packets for the agent. Make it with NewFeature. Sampled may be called at
// any time from any goroutine.
type Feature struct {
	feature.None
	o     FeatureConfig
	ring  *Ring
	tally tally

	mu    sync.Mutex // guards the fields below
	names names
	// stop closes the socket of names.find. It is nil if names.find is.
	stop func()
	// listener is nil while nothing is received from nflog; problem is then the reason.
	listener *nflog.Conn
	problem  error
	// began is when a listener was opened first. Packets that were dropped while it was closed
	// count as skipped. since is began, or zero without a listener.
	began, since time.Time
	// ringProblem is the reason why the ring of BPF programs is not read, and policyProblem the
	// reason why packets that policies deny are not sampled. They are nil if they are.
	ringProblem, policyProblem error
	// waited counts the samples in the ring that are older than since.
	waited uint64
}

// NewFeature returns a Feature that receives nothing yet.
func NewFeature(o FeatureConfig) *Feature {
	// Microseconds make the numbers larger than those of the previous veild, and exact in JSON.
	first := uint64(time.Now().UnixMicro())
	return &Feature{o: o, ring: NewRing(Size, first), names: names{paths: o.Paths},
		problem: errors.New("veild has not begun to sample")}
}

// Begin starts to listen to nflog, and keeps the samples that wait in the ring of BPF programs. It
// never returns an error: if it cannot listen, it logs the reason. Run tries both again.
func (f *Feature) Begin() error {
	if err := f.listen(); err != nil {
		f.o.Log.Warn("dropped packets are only counted, not sampled", "error", err)
	}
	f.keepWaiting()
	return nil
}

// listen opens the listener and begins to compare counters with samples. It records its error in
// f.problem.
func (f *Feature) listen() (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.problem = err }()
	if f.names.find == nil {
		if f.names.find, f.stop, err = finder(); err != nil {
			return err
		}
	}
	counts, err := f.counts()
	if err != nil {
		return err
	}
	if f.listener, err = nflog.Open(abi.NFLogGuard, chains.SampleBytes); err != nil {
		return err
	}
	if f.began.IsZero() {
		f.tally.begin(counts)
		f.began = time.Now()
	}
	f.since = f.began
	return nil
}

// Run receives samples until ctx ends.
func (f *Feature) Run(ctx context.Context) error {
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() { f.readRing(ctx) })
	return f.listenOn(ctx)
}

// listenOn receives from nflog until ctx ends. It reopens a listener that failed.
func (f *Feature) listenOn(ctx context.Context) error {
	for {
		if c := f.open(); c != nil {
			err := f.receive(ctx, c)
			f.ended(err)
			if ctx.Err() == nil {
				f.o.Log.Warn("dropped packets are not sampled for a while", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
		}
		_ = f.listen() // Begin, or the warning above, has logged the problem.
	}
}

func (f *Feature) open() *nflog.Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listener
}

// ended records that the listener was closed because of err.
func (f *Feature) ended(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listener, f.problem, f.since = nil, err, time.Time{}
}

// receive keeps the samples that c receives, until ctx ends or c fails. It closes c.
func (f *Feature) receive(ctx context.Context, c *nflog.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer func() {
		if stop() {
			_ = c.Close()
		}
	}()
	for {
		packets, err := c.Receive()
		if err != nil {
			return err
		}
		for _, p := range packets {
			f.Sampled(p, telemetry.DroppedPacket{Reason: p.Prefix})
		}
	}
}

// Sampled keeps a dropped packet that nflog sampled. drop has the reason, and the pods and policies
// that the caller knows. A sample with an unknown reason is ignored, because another program logged
// it to the group.
func (f *Feature) Sampled(p nflog.Packet, drop telemetry.DroppedPacket) {
	if !f.knows(drop.Reason) {
		return
	}
	drop.Time = time.Now()
	f.keep(p, drop)
	f.tally.add(drop.Reason)
}

// keep completes drop with the headers of p and the names, and adds it to the ring.
func (f *Feature) keep(p nflog.Packet, drop telemetry.DroppedPacket) {
	drop.Src, drop.Dst, drop.SrcPort, drop.DstPort = p.Src, p.Dst, p.SrcPort, p.DstPort
	drop.Length = p.Length
	if p.Src.IsValid() && drop.Protocol == "" {
		drop.Protocol = telemetry.ProtocolName(p.Proto)
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	owner := f.nameLocked(p, &drop)
	if drop.Time.Before(f.since) {
		f.waited++
	}
	f.ring.Add(owner, drop)
}

// nameLocked sets the names of a drop, and returns its owner for Ring.Add. The owner is the link
// on which the packet arrived, but the source address if it came out of a tunnel, and the sending
// pod if it came from a socket.
func (f *Feature) nameLocked(p nflog.Packet, drop *telemetry.DroppedPacket) (owner string) {
	now, n := drop.Time, &f.names
	in, out := n.linkOf(p.In, now), n.linkOf(p.Out, now)
	drop.In, drop.Out = in.name, out.name
	owner = in.name

	sender := n.podBehind(in)
	switch {
	case sender != "":
		drop.SrcPod = sender
	case in.group == abi.TunnelGroup:
		owner = p.Src.String()
	case in.name == "": // A packet without a link comes from a socket.
		owner = drop.SrcPod
	}
	if receiver := n.podBehind(out); receiver != "" {
		drop.DstPod = receiver
	} else if drop.DstPod == "" && !drop.Time.Before(f.since) { // else the address may be reused
		drop.DstPod = n.podAt(p.Dst, now)
	}

	drop.Peer = n.nodeOf(p.Dst)
	if source := n.nodeOf(p.Src); source != "" && sender == "" {
		drop.Peer = source
	}
	return owner
}

// Kept returns the samples that are kept, the oldest first.
func (f *Feature) Kept() []telemetry.DroppedPacket {
	all, _ := f.ring.After(0, Size, func(telemetry.DroppedPacket) bool { return true })
	return all
}

func (f *Feature) knows(reason string) bool { return slices.Contains(f.o.Reasons, reason) }

// counts returns the drop counters of known reasons, and then how many samples the BPF programs
// wrote.
func (f *Feature) counts() (c counts, err error) {
	if c.dropped, err = f.o.Counters(); err != nil {
		return c, fmt.Errorf("count dropped packets: %w", err)
	}
	maps.DeleteFunc(c.dropped, func(name string, _ uint64) bool { return !f.knows(name) })
	if f.o.Ring.Limits != nil {
		c.written, err = f.o.Ring.Written()
	}
	return c, err
}

// Turn receives the verified nodes, by which samples name peers.
func (f *Feature) Turn(t feature.Turn) error {
	if t.SamePlaces {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names.setNodes(t)
	return nil
}

// Close closes the sockets. The listener is closed here only if Run has not begun.
func (f *Feature) Close() (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener != nil {
		err, f.listener = f.listener.Close(), nil
	}
	if f.stop != nil {
		f.stop()
		f.stop, f.names.find = nil, nil
	}
	return err
}

// PoliciesSampled records why packets that policies deny are not passed to Sampled. A nil err means
// that they are.
func (f *Feature) PoliciesSampled(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.policyProblem = err
}

// Status sets s.DropSamples. It has the number of packets without a sample if nflog is received.
func (f *Feature) Status(s *telemetry.Status) {
	shown := f.samples()
	s.DropSamples = &shown
	if shown.Since.IsZero() {
		return
	}
	counts, err := f.counts()
	if err != nil {
		return // The status of the guard or of policies contains the error.
	}
	shown.Skipped = f.tally.settled(counts)
}

// samples returns since when packets are sampled, and why some or all of them are not.
func (f *Feature) samples() (s telemetry.DropSamples) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Since = f.since
	if err := errors.Join(f.problem, f.ringProblem, f.policyProblem); err != nil {
		s.Problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return s
}
