package drop

import (
	"context"
	"time"

	"github.com/kubeveil/kubeveil/pkg/guard/sample"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// keepWaiting keeps the samples that BPF programs wrote while no veild ran, so that the first page
// has them. After an error, readRing reads them.
func (f *Feature) keepWaiting() {
	if f.o.Ring.Samples == nil {
		return
	}
	if r, err := f.o.Ring.Open(); err == nil {
		_ = r.Waiting(f.keepSample)
		_ = r.Close()
	}
}

// readRing keeps the samples of BPF programs until ctx ends.
func (f *Feature) readRing(ctx context.Context) {
	for f.o.Ring.Samples != nil {
		err := f.readUntil(ctx)
		if ctx.Err() != nil {
			return
		}
		f.o.Log.Warn("packets that programs drop are not sampled for a while", "error", err)
		f.mu.Lock()
		f.ringProblem = err
		f.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// readUntil keeps the samples of the ring until ctx ends or a read fails.
func (f *Feature) readUntil(ctx context.Context) error {
	r, err := f.o.Ring.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	defer context.AfterFunc(ctx, func() { _ = r.Close() })()
	f.mu.Lock()
	f.ringProblem = nil
	f.mu.Unlock()
	for {
		s, err := r.Read()
		if err != nil {
			return err
		}
		f.keepSample(s)
	}
}

// keepSample keeps a sample of a BPF program, unless its reason is unknown.
func (f *Feature) keepSample(s sample.Sample) {
	if !f.knows(s.Prefix) {
		return // A program of another version wrote it.
	}
	drop := telemetry.DroppedPacket{Reason: s.Prefix, Time: s.Time}
	if s.ARP {
		drop.Protocol = "arp"
	}
	if s.Netns != 0 {
		drop.Protocol = telemetry.ProtocolName(s.Proto)
		f.mu.Lock()
		drop.SrcPod = f.names.podOf(s.Netns, time.Now())
		f.mu.Unlock()
	}
	f.keep(s.Packet, drop)
}

// before returns how many packets were dropped before f began to listen and have no sample.
func (f *Feature) before() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.tally.before()
	return all - min(f.waited, all)
}
