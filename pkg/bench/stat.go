package bench

import (
	"fmt"
	"slices"
)

// Stat summarizes the values of a quantity, one per round.
type Stat struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// N is the number of rounds.
	N int `json:"n"`
	// Samples holds the values themselves, in the order of rounds, so that a reader can compute
	// other statistics. Nil if there are more than maxSamples, or in results of earlier versions.
	Samples []float64 `json:"samples,omitempty"`
}

// maxSamples is the largest number of values that a Stat keeps in Samples.
const maxSamples = 4096

// Ratio summarizes the ratios ours/base, one per round.
type Ratio struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Summarize returns the statistics of values. Without values it returns the zero Stat.
func Summarize(values []float64) Stat {
	if len(values) == 0 {
		return Stat{}
	}
	s := Stat{Median: Quantile(values, 0.5), Min: slices.Min(values), Max: slices.Max(values),
		N: len(values)}
	if len(values) <= maxSamples {
		s.Samples = slices.Clone(values)
	}
	return s
}

// Ratios returns the statistics of ours[i]/base[i]. Both slices have one value per round. A base of
// 0 is an error, because it means that nothing was measured.
func Ratios(ours, base []float64) (Ratio, error) {
	if len(ours) != len(base) || len(ours) == 0 {
		return Ratio{}, fmt.Errorf("ratios of %d and %d rounds: want equal numbers, at least one",
			len(ours), len(base))
	}
	ratios := make([]float64, len(ours))
	for i := range ours {
		if base[i] == 0 {
			return Ratio{}, fmt.Errorf("ratio in round %d: base is 0", i+1)
		}
		ratios[i] = ours[i] / base[i]
	}
	s := Summarize(ratios)
	return Ratio{s.Median, s.Min, s.Max}, nil
}

// Quantile returns the q-quantile of values (q from 0 to 1; 0.5 is the median), interpolated
// linearly between neighbours. Without values it returns 0.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
