package telemetry

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// namespace is the prefix of the name of every metric.
const namespace = "kubeveil"

// Metrics holds all metrics of a node in a private registry. Make it with NewMetrics. It is safe
// for concurrent use.
type Metrics struct {
	Registry *prometheus.Registry

	add         prometheus.Histogram
	apply       prometheus.Histogram
	applyErrors prometheus.Counter
	decided     prometheus.Counter
	programming prometheus.Histogram
	programmed  sync.Once
	policing    prometheus.Histogram
	policed     sync.Once
	refused     atomic.Uint64
}

// NewMetrics returns the metrics of one node. It calls snapshot for each scrape. perPeer adds
// metrics with a series for each peer. A cluster of n nodes then has n² series of each of them.
func NewMetrics(snapshot Snapshot, perPeer bool) *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(), programming: newProgramming(),
		policing: newPolicyProgramming(),
		add: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: "cni", Name: "add_duration_seconds",
			Help:    "Duration of successful ADDs of the CNI plugin, from the records of pods.",
			Buckets: []float64{.01, .02, .03, .05, .075, .1, .15, .25, .5, 1, 2.5, 5, 10},
		}),
		apply: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: "table", Name: "apply_duration_seconds",
			Help: "Duration of attempts to make the kernel match a table revision, failed " +
				"attempts included.",
			Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		applyErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: "table", Name: "apply_errors_total",
			Help: "Attempts to make the kernel match a table revision that failed in part " +
				"or whole.",
		}),
		decided: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: "table", Name: "decided_nodes_total",
			Help: "Nodes about which turns decided. A turn decides about nodes that changed and " +
				"nodes that claim the same, or about all if these are many.",
		}),
	}
	refused := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: "metrics", Name: "refused_total",
		Help: "Requests for metrics that were refused because the answer would have crossed " +
			"the network in clear.",
	}, func() float64 { return float64(m.Refused()) })

	m.Registry.MustRegister(m.add, m.apply, m.applyErrors, m.decided, refused,
		&collector{snapshot: snapshot, perPeer: perPeer, now: time.Now},
		collectors.NewGoCollector(), collectors.NewProcessCollector(
			collectors.ProcessCollectorOpts{}))
	return m
}

// Refused returns the number of requests for metrics that were refused.
func (m *Metrics) Refused() uint64 { return m.refused.Load() }

// ObserveAdd records how long the plugin's ADD of one pod took. The plugin runs without the daemon,
// so it writes the duration into the pod's record. The daemon observes each new record once.
func (m *Metrics) ObserveAdd(d time.Duration) { m.add.Observe(d.Seconds()) }

// ObserveApply records an attempt to make the kernel match a revision; err is its outcome.
func (m *Metrics) ObserveApply(d time.Duration, err error) {
	m.apply.Observe(d.Seconds())
	if err != nil {
		m.applyErrors.Inc()
	}
}

// ObserveDecided records about how many nodes a turn decided.
func (m *Metrics) ObserveDecided(nodes int) { m.decided.Add(float64(nodes)) }

// collector reads a snapshot for each scrape.
type collector struct {
	snapshot Snapshot
	perPeer  bool
	now      func() time.Time
}

// descs are the descriptions of all metrics that are collected from a Status.
var descs []*prometheus.Desc

// desc makes a description and adds it to descs.
func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
	descs = append(descs, d)
	return d
}

var (
	buildInfoDesc = desc("build_info", "Always 1; the label is the version of veild.", "version")
	blockedDesc   = desc("plaintext_blocked_total",
		"Packets that the guard dropped because they would have crossed the network in clear, "+
			"by reason.", "reason")
	marksDesc = desc("marks_restored_total",
		"Packets of pods and tunnels whose mark the guard restored, because another program had "+
			"overwritten it.")
	guardDesc      = desc("guard_in_force", "Whether the plaintext guard is in force: 1 or 0.")
	guardLinksDesc = desc("guard_links", "Interfaces that the guard is attached to.")
	revisionDesc   = desc("table_revision", "Newest table revision of the source.")
	appliedDesc    = desc("table_applied_revision", "Table revision that the kernel matches.")
	lagDesc        = desc("table_lag_seconds",
		"Time since when the kernel has not matched the newest table revision; 0 if it matches.")
	sourceDesc   = desc("source_synced", "Whether the source has listed all nodes: 1 or 0.")
	refusalsDesc = desc("claims_refused",
		"Claims that veild refuses at the moment, by the node that made them.", "node")
	problemsDesc = desc("problems",
		"Problems that veilctl status shows at the moment.")
	podsDesc        = desc("pods", "Pod interfaces attached on this node.")
	podMTUDesc      = desc("pod_mtu_bytes", "MTU of pods.")
	underlayMTUDesc = desc("underlay_mtu_bytes", "MTU of the underlay.")
	deviceUpDesc    = desc("device_up",
		"Whether the tunnel device exists, is up and answers: 1 or 0.", "device", "kind")
	deviceDropsDesc = desc("tunnel_dropped_total",
		"Packets that veil-wg with the engine kubeveil dropped, and requests that it refused, by "+
			"reason. A reason that did not occur has no series.", "device", "reason")
	offloadDesc = desc("tunnel_offload",
		"Whether veil-wg with the engine kubeveil uses an offload: 1 or 0.", "device", "offload")
	singlyDesc = desc("tunnel_peers_sent_singly",
		"Peers to which veil-wg sends datagrams one by one, because the path loses segmented ones.")
)

// Describe sends the description of every possible metric.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

// Collect sends the metrics of one snapshot. If there is none, the scrape fails.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s, err := c.snapshot()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(buildInfoDesc, err)
		return
	}
	now := c.now()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(buildInfoDesc, 1, s.Version)
	gauge(guardDesc, one(s.Guard.InForce))
	gauge(guardLinksDesc, float64(len(s.Guard.Links)))

	gauge(revisionDesc, float64(s.Table.Revision))
	gauge(appliedDesc, float64(s.Table.Applied))
	gauge(lagDesc, s.Table.Lag(now).Seconds())
	gauge(sourceDesc, one(s.Source.Synced))
	gauge(problemsDesc, float64(len(s.Problems)))
	gauge(podsDesc, float64(s.Pods))
	gauge(podMTUDesc, float64(s.MTU.Pod))
	gauge(underlayMTUDesc, float64(s.MTU.Underlay))

	drops := map[string]uint64{} // summed by name: a duplicate series would fail the whole scrape
	for _, d := range s.Guard.Drops {
		drops[d.Name] += d.Packets
	}

	for name, n := range drops {
		counter(blockedDesc, n, name)
	}

	counter(marksDesc, s.Guard.MarksRestored)
	refused := map[string]float64{}
	for _, r := range s.Refused {
		refused[r.Node]++
	}

	for node, n := range refused {
		gauge(refusalsDesc, n, node)
	}

	seen := map[[2]string]bool{}
	for _, d := range s.Devices {
		if key := [2]string{d.Name, d.Kind}; !seen[key] {
			seen[key] = true
			gauge(deviceUpDesc, one(d.Up), d.Name, d.Kind)
			for reason, n := range d.Drops {
				counter(deviceDropsDesc, n, d.Name, reason)
			}
			for name, on := range d.Offloads {
				gauge(offloadDesc, one(on), d.Name, name)
			}
		}
	}

	singly := 0
	for _, p := range s.Peers {
		if p.Singly {
			singly++
		}
	}
	gauge(singlyDesc, float64(singly))

	collectPeers(s.Peers, now, gauge, counter)
	if c.perPeer {
		collectEachPeer(s.Peers, now, gauge, counter)
	}

	collectServices(s.Services, gauge, counter)
	collectPolicy(s.Policy, gauge, counter)
	collectConnections(s.Connections, gauge, counter)
	collectSites(s.Sites, gauge, counter)
	collectDrops(s.DropSamples, gauge, counter)
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
