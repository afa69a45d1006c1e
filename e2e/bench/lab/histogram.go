package lab

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// histogram is a Prometheus histogram: upper bounds and cumulative counts.
type histogram struct {
	bounds, counts []float64
	count, sum     float64
}

// turns returns the durations of veild's turns in seconds. A turn is an attempt to make the kernel
// match the table.
func (s *scaled) turns(ctx context.Context) (histogram, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics",
		nil)
	if err != nil {
		return histogram{}, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return histogram{}, err
	}
	defer resp.Body.Close()
	return parseHistogram(resp.Body, "kubeveil_table_apply_duration_seconds")
}

// parseHistogram returns the only histogram called name of the Prometheus text format.
func parseHistogram(r io.Reader, name string) (h histogram, err error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return h, err
	}
	metrics := families[name].GetMetric()
	if len(metrics) != 1 || metrics[0].GetHistogram() == nil {
		return h, fmt.Errorf("the metrics have no histogram %s", name)
	}
	got := metrics[0].GetHistogram()
	h.count, h.sum = float64(got.GetSampleCount()), got.GetSampleSum()
	for _, b := range got.GetBucket() {
		h.bounds = append(h.bounds, b.GetUpperBound())
		h.counts = append(h.counts, float64(b.GetCumulativeCount()))
	}
	return h, nil
}

// minus returns the histogram of the observations since earlier.
func (b histogram) minus(earlier histogram) histogram {
	d := histogram{bounds: b.bounds, count: b.count - earlier.count, sum: b.sum - earlier.sum}
	for i := range b.counts {
		d.counts = append(d.counts, b.counts[i]-earlier.counts[i])
	}
	return d
}

// meanMillis returns the mean in milliseconds of a histogram in seconds, or 0 for an empty one.
func (b histogram) meanMillis() float64 { return 1000 * b.sum / max(b.count, 1) }

// quantile returns the q-quantile, interpolated within the bucket as PromQL's histogram_quantile
// does. In the last bucket, which has no upper bound, it returns the lower bound. It returns 0 for
// an empty histogram.
func (b histogram) quantile(q float64) float64 {
	if b.count == 0 {
		return 0
	}
	rank, from, below := q*b.count, 0.0, 0.0
	for i, to := range b.bounds {
		if b.counts[i] >= rank && b.counts[i] > below {
			if math.IsInf(to, 1) {
				return from
			}
			return from + (to-from)*(rank-below)/(b.counts[i]-below)
		}
		from, below = to, b.counts[i]
	}
	return from
}
