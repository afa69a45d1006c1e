package lab

import (
	"math"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestHistogramQuantile(t *testing.T) {
	const text = `# HELP x_seconds Help.
# TYPE x_seconds histogram
x_seconds_bucket{le="0.1"} %
x_seconds_bucket{le="0.2"} 90
x_seconds_bucket{le="+Inf"} 100
x_seconds_sum 12
x_seconds_count 100
other_bucket{le="1"} 7
`
	b, err := parseHistogram(strings.NewReader(strings.ReplaceAll(text, "%", "80")), "x_seconds")
	errtest.Must(t, err)
	for q, want := range map[float64]float64{0.4: 0.05, 0.85: 0.15, 0.99: 0.2} {
		if got := b.quantile(q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if d := b.minus(b); d.count != 0 || d.sum != 0 || d.quantile(0.99) != 0 {
		t.Errorf("difference of equal histograms is %+v, want zeros", d)
	}
	if _, err := parseHistogram(strings.NewReader(text), "absent"); err == nil {
		t.Error("a missing histogram returned no error")
	}
}
