package network

import (
	"context"

	"github.com/kubeveil/kubeveil/pkg/bench"
)

// starts adds the times from apply to all nodes Ready (Options.Ready), and measures the times from
// the creation of a pod to its first bytes.
func (s *run) starts(ctx context.Context) error {
	if len(s.Ready) > 0 {
		s.Result.Cases = append(s.Result.Cases, bench.Case{Name: caseReady, Unit: bench.Millisecond,
			Ours: bench.Summarize(inMillis(s.Ready))})
	} else {
		s.Skip(caseReady, "Kubeveil was installed already")
	}
	s.Progress("new pods to their first bytes across nodes")
	ours, err := s.bed.FirstBytes(ctx)
	if err != nil {
		return err
	}
	c := bench.Case{Name: caseFirst, Unit: bench.Millisecond, Ours: bench.Summarize(inMillis(ours))}
	if len(s.Reference) == len(ours) {
		base := bench.Summarize(inMillis(s.Reference))
		ratio, err := bench.Ratios(ours, s.Reference)
		if err != nil {
			return err
		}
		c.Base, c.BaseName, c.Ratio = &base, baseRef, &ratio
	} else {
		s.Skip(caseFirst+" of the reference plugins", "the cluster never had them")
	}
	s.Result.Cases = append(s.Result.Cases, c)
	return nil
}

func inMillis(seconds []float64) []float64 {
	out := make([]float64, len(seconds))
	for i, s := range seconds {
		out[i] = s * 1000
	}
	return out
}
