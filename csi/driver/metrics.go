package driver

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Metrics are the counters of a driver.
type Metrics struct {
	calls     *prometheus.HistogramVec
	rewrapped prometheus.Counter
	failed    *prometheus.CounterVec
	trimmed   prometheus.Counter
	refused   *prometheus.CounterVec
	keysAway  prometheus.Counter
}

// Label values of background work.
const (
	workRewrap = "rewrap"
	workTrim   = "trim"
	workYield  = "yield"
	workDisks  = "disks"
	workUnused = "unused"
)

// NewMetrics registers the metrics of d with r. registered reports whether the kubelet has
// registered the driver.
func NewMetrics(d *Driver, registered func() bool, r prometheus.Registerer) *Metrics {
	m := &Metrics{
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubeveil_csi_call_seconds",
			Help:    "Duration of CSI calls, by method and gRPC code.",
			Buckets: []float64{0.005, 0.02, 0.1, 0.5, 1.5, 5, 20, 60},
		}, []string{"method", "code"}),
		rewrapped: prometheus.NewCounter(
			prometheus.CounterOpts{Name: "kubeveil_csi_keys_rewrapped_total",
				Help: "Keys of volumes that were rewrapped by the current key-encryption key."}),
		failed: prometheus.NewCounterVec(
			prometheus.CounterOpts{Name: "kubeveil_csi_upkeep_failures_total",
				Help: "Rounds of background work that ended with an error."}, []string{"work"}),
		trimmed: prometheus.NewCounter(
			prometheus.CounterOpts{Name: "kubeveil_csi_trimmed_bytes_total",
				Help: "Free bytes that were discarded on disks, of volumes with discard: batch."}),
	}

	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubeveil_csi_refused_total",
		Help: "Calls and rounds of background work that refused a disk because its content is " +
			"not as expected, by what was found.",
	}, []string{"kind"})
	m.keysAway = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubeveil_csi_key_service_failures_total",
		Help: "Calls that the key service did not answer.",
	})

	for _, kind := range crypt.Kinds() {
		m.refused.WithLabelValues(kind.Name())
	}

	count := func(name, help string, of *atomic.Int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help},
			func() float64 { return float64(of.Load()) })
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	r.MustRegister(m.calls, m.rewrapped, m.failed, m.trimmed, m.refused, m.keysAway,
		count("kubeveil_csi_fenced_total",
			"Mappings that were fenced, because another node took the volume over.",
			&d.fenced),
		count("kubeveil_csi_unsealed_total", "Volumes that were closed without sealing their disk.",
			&d.unsealed),
		gauge("kubeveil_csi_mappings", "Mappings of volumes on this node; -1 if they cannot be "+
			"read.", func() float64 {
			names, err := d.anySet.Engine.List(context.Background(), dmcrypt.NamePrefixAll)
			if err != nil {
				return -1
			}
			return float64(len(names))
		}),
		gauge("kubeveil_csi_orphans", "Mappings in use whose VeilVolume was deleted.",
			func() float64 { return float64(d.Orphans()) }),
		gauge("kubeveil_csi_staged_unused", "Volumes that have been open on this node for ten "+
			"minutes without a pod: the kubelet may have forgotten to unstage them.",
			func() float64 { return float64(d.StagedUnused()) }),
		gauge("kubeveil_csi_registered", "Whether the kubelet has registered the driver: 1 or 0.",
			func() float64 {
				if registered() {
					return 1
				}
				return 0
			}))

	for _, work := range []string{workRewrap, workTrim, workYield, workDisks, workUnused} {
		m.failed.WithLabelValues(work)
	}
	return m
}

// Observe records the duration of a call, and counts its error.
func (m *Metrics) Observe(c Call) {
	m.calls.WithLabelValues(c.Method, Code(c.Err).String()).Observe(c.Took.Seconds())
	var refused *crypt.RefusedError
	if errors.As(c.Err, &refused) {
		m.refused.WithLabelValues(refused.Kind.Name()).Inc()
	}
	if errors.Is(c.Err, keyring.ErrUnavailable) {
		m.keysAway.Inc()
	}
}

// Notice counts a refused disk that upkeep met.
func (m *Metrics) Notice(n Notice) {
	if n.Refused != "" {
		m.refused.WithLabelValues(n.Refused.Name()).Inc()
	}
}

// count counts an error of background work, and returns it.
func (m *Metrics) count(work string, err error) error {
	if err != nil {
		m.failed.WithLabelValues(work).Inc()
	}
	return err
}

// Rewrap calls Driver.Rewrap, and counts rewrapped keys and an error.
func (m *Metrics) Rewrap(ctx context.Context, d *Driver) error {
	r, err := d.Rewrap(ctx)
	m.rewrapped.Add(float64(r.Changed))
	return m.count(workRewrap, err)
}

// Trim calls Driver.Trim, and counts trimmed bytes and an error.
func (m *Metrics) Trim(ctx context.Context, d *Driver) error {
	n, err := d.Trim(ctx)
	m.trimmed.Add(float64(n))
	return m.count(workTrim, err)
}

// FenceLost calls Driver.FenceLost, and counts an error.
func (m *Metrics) FenceLost(ctx context.Context, d *Driver) error {
	return m.count(workYield, d.FenceLost(ctx))
}

// CheckDisks calls Driver.CheckDisks, and counts an error.
func (m *Metrics) CheckDisks(ctx context.Context, d *Driver) error {
	return m.count(workDisks, d.CheckDisks(ctx))
}

// CheckUnused calls Driver.CheckUnused, and counts an error.
func (m *Metrics) CheckUnused(ctx context.Context, d *Driver) error {
	return m.count(workUnused, d.CheckUnused(ctx))
}
