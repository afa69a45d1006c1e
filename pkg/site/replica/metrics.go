package replica

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kubeveil/kubeveil/pkg/site/link"
)

const (
	namespace = "kubeveil"
	subsystem = "site"
)

// Metrics are the metrics of a replica. The label site has the names of sites of the configuration,
// which are at most eight.
type Metrics struct {
	Registry *prometheus.Registry

	leader, valid prometheus.Gauge
	waiting       prometheus.Gauge
	rounds        prometheus.Histogram
	writes        *prometheus.CounterVec
	refused       prometheus.Counter

	mu sync.Mutex
	// sites are the states after the last comparison.
	sites []link.SiteState
	// problem is the reason why the configuration is not valid, or "".
	problem string
}

// siteMetric is a figure of each open site.
type siteMetric struct {
	desc *prometheus.Desc
	of   func(link.SiteState) (value float64, known bool)
}

func siteDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help,
		[]string{"site"}, nil)
}

func count(of func(link.SiteState) int) func(link.SiteState) (float64, bool) {
	return func(s link.SiteState) (float64, bool) { return float64(of(s)), true }
}

var siteMetrics = []siteMetric{
	{siteDesc("readable", "1 if the last attempt to read what the site states succeeded. While it "+
		"is 0, mirrored objects stay."), func(s link.SiteState) (float64, bool) {
		if s.Readable {
			return 1, true
		}
		return 0, true
	}},
	{siteDesc("nodes", "Nodes of the site that are mirrored as SiteNodes."),
		count(func(s link.SiteState) int { return s.Nodes })},
	{siteDesc("imports", "Services that are imported from the site."),
		count(func(s link.SiteState) int { return s.Imports })},
	{siteDesc("endpoints", "Endpoints of the site in imported services."),
		count(func(s link.SiteState) int { return s.Endpoints })},
	{siteDesc("exports", "Services that are stated to the site."),
		count(func(s link.SiteState) int { return s.Exports })},
	{siteDesc("refused", "Nodes, services and endpoints of the site that are refused or left out. "+
		"The SiteLink names them."), count(func(s link.SiteState) int { return s.Refused })},
	{siteDesc("token_end_timestamp_seconds", "When the token for the site ends, Unix time. It is "+
		"missing if the token does not say."), func(s link.SiteState) (float64, bool) {
		return float64(s.TokenEnds.Unix()), !s.TokenEnds.IsZero()
	}},
}

// NewMetrics returns the metrics of a replica that has done nothing yet.
func NewMetrics() *Metrics {
	m := &Metrics{Registry: prometheus.NewRegistry(),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace,
			Subsystem: subsystem, Name: "leader",
			Help: "1 if this replica holds the lease. Only that replica has metrics of sites."}),
		valid: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace,
			Subsystem: subsystem, Name: "config_valid",
			Help: "1 if the configuration file is valid. While it is 0, the former content is in " +
				"force."}),
		rounds: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace,
			Subsystem: subsystem, Name: "round_duration_seconds",
			Help:    "Duration of comparisons of all objects of links, with their writes.",
			Buckets: []float64{.01, .05, .25, 1, 5, 20, 60, 300}}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace,
			Subsystem: subsystem, Name: "writes_total",
			Help: "Objects that were created, replaced or deleted, by result: done or failed."},
			[]string{"result"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace,
			Subsystem: subsystem, Name: "writes_waiting",
			Help: "Writes that the last comparison left for the next one, because a site or this " +
				"cluster changes more than its share."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace,
			Subsystem: subsystem, Name: "metrics_refused_total",
			Help: "Requests for metrics that were refused because the answer would have crossed " +
				"the network in clear."}),
	}

	m.valid.Set(1)
	for _, result := range []string{"done", "failed"} {
		m.writes.WithLabelValues(result)
	}
	m.Registry.MustRegister(m, m.leader, m.valid, m.waiting, m.rounds, m.writes, m.refused,
		collectors.NewGoCollector(), collectors.NewProcessCollector(
			collectors.ProcessCollectorOpts{}))
	return m
}

// observe records the outcome of a comparison.
func (m *Metrics) observe(r link.Round) {
	m.rounds.Observe(r.Duration.Seconds())
	m.writes.WithLabelValues("done").Add(float64(r.Written))
	m.writes.WithLabelValues("failed").Add(float64(r.Failed))
	m.waiting.Set(float64(r.Waiting))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sites = r.Sites
}

// noteConfig records whether the configuration is valid. It reports whether err is a new problem.
func (m *Metrics) noteConfig(err error) (isNew bool) {
	problem, valid := "", 1.0
	if err != nil {
		problem, valid = err.Error(), 0
	}
	m.valid.Set(valid)
	m.mu.Lock()
	defer m.mu.Unlock()
	isNew = problem != "" && problem != m.problem
	m.problem = problem
	return isNew
}

// Describe sends the descriptions of the metrics of sites.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, s := range siteMetrics {
		to <- s.desc
	}
}

// Collect sends the metrics of open sites as of the last comparison.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	sites := m.sites
	m.mu.Unlock()
	for _, site := range sites {
		if !site.Open {
			continue
		}
		for _, s := range siteMetrics {
			if value, known := s.of(site); known {
				to <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, value, site.Name)
			}
		}
	}
}
