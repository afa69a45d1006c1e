package api

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/bench/api/faultlab"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

const (
	// suffixWorst marks a case whose only value is the longest wait.
	suffixWorst = "_worst"
	// suffixMissed marks a case whose value is the number of events that watches did not see.
	suffixMissed = "_missed"
)

// fault is a fault of API servers that the suite causes.
type fault struct {
	name, title string
	// begin causes the fault and returns the time from which clients wait. end repairs it.
	begin, end faultlab.Event
}

var faults = []fault{
	{"power", "one of two API servers loses its power", (*faultlab.Lab).Unplug,
		(*faultlab.Lab).Plug},
	{"blackhole", "packets of one of two API servers are lost", (*faultlab.Lab).Blackhole,
		(*faultlab.Lab).Unblackhole},
	{"stop", "one of two API servers is stopped, and its kernel acknowledges", (*faultlab.Lab).Stop,
		(*faultlab.Lab).Resume},
	{"back", "both API servers lose their power, and one comes back", (*faultlab.Lab).UnplugAll,
		(*faultlab.Lab).Plug},
}

func caseFailure(part string, f fault, kind string) string {
	return fmt.Sprintf("%s_%s_%s", part, f.name, kind)
}

func (s *run) failure(ctx context.Context) error { return s.fail(ctx, partFailure, lab.IPv4) }

func (s *run) failure6(ctx context.Context) error { return s.fail(ctx, partFailure6, lab.IPv6) }

// fail measures in a lab of a family how long clients that hold connections wait after each fault.
func (s *run) fail(ctx context.Context, part string, family lab.Family) error {
	return s.inLab(ctx, family, func(ctx context.Context, b *faultlab.Lab) error {
		return b.WhileWritten(ctx, func(ctx context.Context) error {
			for _, f := range faults {
				if err := s.suffer(ctx, part, b, f); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// suffer causes a fault s.Faults times and adds its cases.
func (s *run) suffer(ctx context.Context, part string, b *faultlab.Lab, f fault) error {
	missed, waits := 0, map[string][]float64{}
	for i := range s.Faults {
		took, sum, err := b.Suffer(ctx, f.begin, f.end)
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

// over returns the suffix for labels of a part: ", over IPv6", or "" for IPv4.
func over(part string) string {
	if part == partFailure6 {
		return ", over IPv6"
	}
	return ""
}

// heldKinds returns the kinds of held clients with their titles, in the order of reports.
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
