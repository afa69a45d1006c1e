package api

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

const (
	// suffixWorst marks a case with one value, the worst of all times.
	suffixWorst = "_worst"
	// suffixMissed marks the number of events that watches did not see.
	suffixMissed = "_missed"
)

// fault is something that happens to API servers.
type fault struct {
	name, title string
	// begin makes it happen and returns since when clients wait; end takes it back.
	begin, end func(*broken, context.Context) (time.Time, error)
}

var faults = []fault{
	{"power", "one of two API servers loses its power", (*broken).unplug, (*broken).plug},
	{"blackhole", "packets of one of two API servers are lost", (*broken).blackhole,
		(*broken).unblackhole},
	{"stop", "one of two API servers is stopped, and its kernel acknowledges", (*broken).stop,
		(*broken).resume},
	{"back", "both API servers lose their power, and one comes back", (*broken).unplugAll,
		(*broken).plug},
}

func caseFailure(part string, f fault, kind string) string {
	return fmt.Sprintf("%s_%s_%s", part, f.name, kind)
}

// servedWithin is how long a client may wait: client-go by itself finds a dead connection after
// 45 s.
const servedWithin = 75 * time.Second

func (s *run) failure(ctx context.Context) error { return s.fail(ctx, partFailure, lab.IPv4) }

func (s *run) failure6(ctx context.Context) error { return s.fail(ctx, partFailure6, lab.IPv6) }

// fail measures how long clients that hold connections wait after each fault.
func (s *run) fail(ctx context.Context, part string, family lab.Family) error {
	return s.inLab(ctx, family, func(ctx context.Context, b *broken) error {
		return b.whileWritten(ctx, func(ctx context.Context) error {
			for _, f := range faults {
				if err := s.suffer(ctx, part, b, f); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// suffer lets a fault happen again and again, and adds its cases.
func (s *run) suffer(ctx context.Context, part string, b *broken, f fault) error {
	missed, waits := 0, map[string][]float64{}
	for i := range s.Faults {
		took, sum, err := b.suffer(ctx, f)
		if err != nil {
			return fmt.Errorf("%s, %d: %w", f.name, i+1, err)
		}
		missed += sum.Missed
		text := ""
		for kind := range heldKinds() {
			waits[kind] = append(waits[kind], took[kind])
			text += fmt.Sprintf(", %s %.0f ms", kind, took[kind])
		}
		s.Progress("%s %d/%d%s, %d events missed", f.name, i+1, s.Faults, text, sum.Missed)
	}

	for kind, title := range heldKinds() {
		name, label := caseFailure(part, f, kind), fmt.Sprintf("%s: %s%s", title, f.title, over(part))
		s.Add(name, label, bench.Millisecond, waits[kind]...)
		s.Add(name+suffixWorst, label+", the worst", bench.Millisecond, slices.Max(waits[kind]))
	}
	s.Add(caseFailure(part, f, client.KindWatch)+suffixMissed,
		fmt.Sprintf("Events that watches missed: %s%s", f.title, over(part)), bench.Count,
		float64(missed))
	return nil
}

// over names the family of a part, where it is not IPv4.
func over(part string) string {
	if part == partFailure6 {
		return ", over IPv6"
	}
	return ""
}

// heldKinds returns what clients are held, with titles for people, in order.
func heldKinds() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, k := range client.Kinds {
			if !yield(k.Name, "First good request of "+k.Title) {
				return
			}
		}
		yield(client.KindWatch, "First event of a watch")
	}
}

// suffer lets a fault happen to held clients, and returns for each kind how long the client waited
// that waited longest, milliseconds.
func (b *broken) suffer(ctx context.Context, f fault) (took map[string]float64, sum client.Tally,
	err error) {
	if err := b.good(ctx); err != nil {
		return nil, sum, err
	}
	if err := b.start(ctx, "hold"); err != nil {
		return nil, sum, err
	}

	since, err := f.begin(b, ctx)
	defer func() {
		_, e := f.end(b, context.WithoutCancel(ctx))
		err = errors.Join(err, e)
	}()
	if err != nil {
		return nil, sum, err
	}
	return b.served(ctx, since)
}

// server is the one that faults happen to.
func (b *broken) server() *lab.Server { return b.lab.Control.Servers[failing] }

// host is where that one runs.
func (b *broken) host() *lab.Host { return b.lab.Control.ServerHost(failing) }

// unplug takes the power from the second server.
func (b *broken) unplug(ctx context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.server().Unplug(ctx, true), b.mark())
}

// plug returns the power to all servers, to the first one first.
func (b *broken) plug(ctx context.Context) (time.Time, error) {
	since := time.Now()
	var errs []error
	for _, s := range b.lab.Control.Servers {
		errs = append(errs, s.Unplug(ctx, false))
	}
	return since, errors.Join(errs...)
}

func (b *broken) blackhole(ctx context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.host().Blackhole(ctx, true), b.mark())
}

func (b *broken) unblackhole(ctx context.Context) (time.Time, error) {
	return time.Now(), b.host().Blackhole(ctx, false)
}

// stop stops the second server's process: its kernel goes on.
func (b *broken) stop(context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.server().Process.Signal(syscall.SIGSTOP), b.mark())
}

func (b *broken) resume(context.Context) (time.Time, error) {
	return time.Now(), b.server().Process.Signal(syscall.SIGCONT)
}

// unplugAll takes the power from both servers until veild has seen it, and returns it to the first,
// which listens at once.
func (b *broken) unplugAll(ctx context.Context) (time.Time, error) {
	for _, s := range slices.Backward(b.lab.Control.Servers) {
		if err := s.Unplug(ctx, true); err != nil {
			return time.Time{}, err
		}
	}
	if err := errors.Join(b.mark(), b.wait(ctx, 0)); err != nil {
		return time.Time{}, err
	}
	since := time.Now()
	return since, b.lab.Control.Servers[0].Unplug(ctx, false)
}
