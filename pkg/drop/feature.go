package drop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/guard/sample"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// retry is how soon the Feature tries again to listen.
const retry = 30 * time.Second

// FeatureConfig holds what a Feature is made from.
type FeatureConfig struct {
	// Reasons are the names of all drop reasons that samples may have.
	Reasons []string
	// Counters returns how many packets were dropped, by reason, in a map of its own. It may have
	// other counters too.
	Counters func() (map[string]uint64, error)
	// Ring has the samples that BPF programs write. The zero value means that none do.
	Ring  sample.Ring
	Paths pod.Paths
	Log   *slog.Logger
}

// Feature samples dropped packets, as the agent drives it. Make it with NewFeature. Sampled may be
// called at any time from any goroutine.
type Feature struct {
	feature.None
	o     FeatureConfig
	ring  *Ring
	tally tally

	mu    sync.Mutex // guards the fields below
	names names
	// stop releases what names.find uses.
	stop func()
	// listener is nil while nothing is received, because of problem.
	listener *nflog.Conn
	problem  error
	since    time.Time
	// ringProblem is why the ring of programs is not read.
	ringProblem error
	// waited counts the samples of programs that waited for this Feature.
	waited uint64
}

// NewFeature returns a Feature that receives nothing yet.
func NewFeature(o FeatureConfig) *Feature {
	// The numbers of one veild are above those of the veild before, and exact in JSON.
	first := uint64(time.Now().UnixMicro())
	return &Feature{o: o, ring: NewRing(Size, first), names: names{paths: o.Paths},
		problem: errors.New("veild has not begun to listen")}
}

// Begin begins to listen to the kernel. Without success veild works on, and Run tries again.
func (f *Feature) Begin() error {
	if err := f.listen(); err != nil {
		f.o.Log.Warn("dropped packets are counted and not sampled", "error", err)
	}
	return nil
}

// listen opens the listener.
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
	f.listener, err = nflog.Open(abi.NFLogGuard, chains.SampleBytes)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("another program listens to group %d of nflog, end it: %w",
			abi.NFLogGuard, err)
	}
	if err != nil {
		return fmt.Errorf("the kernel needs the module nfnetlink_log: %w", err)
	}
	f.tally.begin(counts)
	f.since = time.Now()
	return nil
}

// Run receives samples until ctx ends.
func (f *Feature) Run(ctx context.Context) error {
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() { f.readRing(ctx) })
	return f.listenOn(ctx)
}

// listenOn receives from the kernel's log until ctx ends.
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
		_ = f.listen() // Begin or the end of receive has logged why not.
	}
}

func (f *Feature) open() *nflog.Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listener
}

// ended notes that the listener is closed.
func (f *Feature) ended(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listener, f.problem, f.since = nil, err, time.Time{}
}

// receive receives from c, and closes it at the end.
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

// Sampled keeps a sample of a dropped packet of the kernel's log. drop has the reason and what else the caller knows of
// pods and policies. A reason that is not known is left out: another program logs to the group.
func (f *Feature) Sampled(p nflog.Packet, drop telemetry.DroppedPacket) {
	if !f.knows(drop.Reason) {
		return
	}
	drop.Time = time.Now()
	f.keep(p, drop)
	f.tally.add(drop.Reason)
}

// keep keeps a sample.
func (f *Feature) keep(p nflog.Packet, drop telemetry.DroppedPacket) {
	drop.Src, drop.Dst, drop.SrcPort, drop.DstPort = p.Src, p.Dst, p.SrcPort, p.DstPort
	drop.Length = p.Length
	if p.Src.IsValid() && drop.Protocol == "" {
		drop.Protocol = telemetry.ProtocolName(p.Proto)
	}

	f.mu.Lock()
	owner := f.nameLocked(p, &drop)
	if drop.Time.Before(f.since) {
		f.waited++
	}
	f.mu.Unlock()
	f.ring.Add(owner, drop)
}

// nameLocked sets the names of a drop, and returns its owner: the pod that sent the packet, by its
// link or, out of a tunnel, by its address; otherwise the link.
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
	case in.name == "": // A socket, if it has a name.
		owner = drop.SrcPod
	}
	if receiver := n.podBehind(out); receiver != "" {
		drop.DstPod = receiver
	} else if drop.DstPod == "" && !drop.Time.Before(f.since) { // Another pod may have it by now.
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
	all, _ := f.ring.After(0, func(telemetry.DroppedPacket) bool { return true })
	return all
}

func (f *Feature) knows(reason string) bool { return slices.Contains(f.o.Reasons, reason) }

// counts returns how many packets were dropped, without other counters.
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

// Turn receives the nodes that are believed.
func (f *Feature) Turn(t feature.Turn) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names.setNodes(t)
	return nil
}

// Close closes the listener of a Feature whose Run has not begun, and what finds links.
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

// Status adds how many packets have no sample.
func (f *Feature) Status(s *telemetry.Status) {
	shown := f.samples()
	if shown.Since.IsZero() {
		return
	}
	counts, err := f.counts()
	if err != nil {
		return // The status of the guard and of policies has the error.
	}
	shown.Skipped = f.tally.settled(counts)
	s.DropSamples = &shown
}

// samples returns since when packets are sampled, or why they are not.
func (f *Feature) samples() (s telemetry.DropSamples) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Since = f.since
	if err := errors.Join(f.problem, f.ringProblem); err != nil {
		s.Problem = err.Error()
	}
	return s
}
