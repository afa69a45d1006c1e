package telemetry

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// busy returns a status with a value in every field.
func busy() Status {
	return Status{
		Node: "a", Version: "v0.1.0", Started: now.Add(-time.Hour),
		Source: Source{Kind: "kubernetes", Synced: true, Changed: now},
		Table: TableStatus{Revision: 9, Applied: 8, Waiting: now.Add(-2 * time.Second), Prefixes: 4,
			NodeAddrs: 3},
		Devices: []Device{{Name: "veil0", Kind: "userspace", PublicKey: wgkey.Public{1},
			Port: 51820, MTU: 1440, Up: true, Drops: map[string]uint64{"forged": 4},
			Offloads: map[string]bool{"udp_segment": true}}},
		Peers: []Peer{
			{Name: "b", State: PeerUp, Device: "veil0", PublicKey: wgkey.Public{2},
				Endpoint:   netip.MustParseAddrPort("198.19.0.2:51820"),
				AllowedIPs: []netip.Prefix{netip.MustParsePrefix("198.18.2.0/24")},
				Handshake:  now.Add(-5 * time.Second), Received: 100, Sent: 200, MTU: 1400},
			{Name: "c", State: PeerSilent, Device: "veil0", SilentSince: now.Add(-20 * time.Second),
				Received: 1, Sent: 2},
			{Name: "d", State: PeerKeyless},
			{Name: "e", State: PeerRefused},
		},
		Pods: 3,
		Guard: Guard{InForce: true, Hook: "tcx", Links: []string{"eth0"},
			Drops:         []Drop{{Number: 1, Name: "egress_inner", Sentence: "x", Packets: 7}},
			MarksRestored: 8},
		MTU:      MTU{Underlay: 1500, Pod: 1440, Explanation: []string{"1500 underlay"}},
		Refused:  []cluster.Refusal{{Node: "e", Incumbent: "b", Reason: "same key"}},
		Problems: []string{"one"},
	}
}

func metricsOf(s Status) *Metrics {
	m := NewMetrics(func() (Status, error) { return s, nil }, true)
	// A collector is identified by its descriptions, so this removes the one with the real clock.
	m.Registry.Unregister(&collector{})
	m.Registry.MustRegister(&collector{snapshot: func() (Status, error) { return s, nil },
		perPeer: true, now: func() time.Time { return now }})
	return m
}

func gather(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := m.Registry.Gather()
	errtest.Must(t, err)
	out := map[string]*dto.MetricFamily{}
	for _, f := range families {
		out[f.GetName()] = f
	}
	return out
}

// value finds the sample of name whose labels are exactly labels ("k=v,k=v", sorted).
func value(families map[string]*dto.MetricFamily, name, labels string) (float64, bool) {
	for _, m := range families[name].GetMetric() {
		var have []string
		for _, l := range m.GetLabel() {
			have = append(have, l.GetName()+"="+l.GetValue())
		}
		if strings.Join(have, ",") == labels {
			switch {
			case m.Gauge != nil:
				return m.GetGauge().GetValue(), true
			case m.Counter != nil:
				return m.GetCounter().GetValue(), true
			case m.Histogram != nil:
				return float64(m.GetHistogram().GetSampleCount()), true
			}
		}
	}
	return 0, false
}

// metric is a series with its value.
type metric struct {
	name, labels string
	want         float64
}

// holds checks the values of series.
func holds(t *testing.T, families map[string]*dto.MetricFamily, all []metric) {
	t.Helper()
	for _, c := range all {
		if got, ok := value(families, c.name, c.labels); !ok || got != c.want {
			t.Errorf("%s{%s} is %v (present: %t), want %v", c.name, c.labels, got, ok, c.want)
		}
	}
}

func TestMetricsSayWhatTheSnapshotSays(t *testing.T) {
	m := metricsOf(busy())
	m.ObserveAdd(40 * time.Millisecond)
	m.ObserveApply(time.Millisecond, nil)
	m.ObserveApply(time.Millisecond, errors.New("x"))
	m.ObserveDecided(6)

	families := gather(t, m)
	holds(t, families, []metric{
		{"kubeveil_peers", "state=up", 1},
		{"kubeveil_peers", "state=idle", 0},
		{"kubeveil_peers", "state=silent", 1},
		{"kubeveil_peers_narrow", "", 1},
		{"kubeveil_peers_oldest_handshake_seconds", "", 5},
		{"kubeveil_peers_longest_silence_seconds", "", 20},
		{"kubeveil_tunnel_receive_bytes_total", "device=veil0", 101},
		{"kubeveil_tunnel_transmit_bytes_total", "device=veil0", 202},
		{"kubeveil_peer_silence_seconds", "device=veil0,peer=b", 0},
		{"kubeveil_peer_silence_seconds", "device=veil0,peer=c", 20},
		{"kubeveil_peers", "state=keyless", 1},
		{"kubeveil_peers", "state=refused", 1},
		{"kubeveil_peer_last_handshake_timestamp_seconds", "device=veil0,peer=b",
			float64(now.Unix() - 5)},
		{"kubeveil_peer_last_handshake_timestamp_seconds", "device=veil0,peer=c", 0},
		{"kubeveil_peer_receive_bytes_total", "device=veil0,peer=b", 100},
		{"kubeveil_peer_transmit_bytes_total", "device=veil0,peer=b", 200},
		{"kubeveil_peer_mtu_bytes", "device=veil0,peer=b", 1400},
		{"kubeveil_plaintext_blocked_total", "reason=egress_inner", 7},
		{"kubeveil_marks_restored_total", "", 8},
		{"kubeveil_guard_in_force", "", 1},
		{"kubeveil_table_revision", "", 9},
		{"kubeveil_table_applied_revision", "", 8},
		{"kubeveil_table_lag_seconds", "", 2},
		{"kubeveil_claims_refused", "node=e", 1},
		{"kubeveil_pods", "", 3},
		{"kubeveil_pod_mtu_bytes", "", 1440},
		{"kubeveil_device_up", "device=veil0,kind=userspace", 1},
		{"kubeveil_tunnel_dropped_total", "device=veil0,reason=forged", 4},
		{"kubeveil_cni_add_duration_seconds", "", 1},
		{"kubeveil_table_apply_duration_seconds", "", 2},
		{"kubeveil_table_apply_errors_total", "", 1},
		{"kubeveil_table_decided_nodes_total", "", 6},
	})
}

// Without perPeer there are no series of single peers, because a thousand nodes would have millions
// of them.
func TestMetricsOfEachPeerAreAsked(t *testing.T) {
	m := NewMetrics(func() (Status, error) { return busy(), nil }, false)
	for name, f := range gather(t, m) {
		for _, series := range f.GetMetric() {
			for _, label := range series.GetLabel() {
				if label.GetName() == "peer" {
					t.Errorf("%s has a series of peer %s", name, label.GetValue())
				}
			}
		}
	}
}

func TestMetricNamesFollowTheEcosystem(t *testing.T) {
	var families []*dto.MetricFamily
	for name, f := range gather(t, metricsOf(busy())) {
		if strings.HasPrefix(name, "kubeveil_") {
			families = append(families, f)
		}
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	errtest.Must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Without a status a scrape fails. Zeros would say that the guard is not in force.
func TestScrapeWithoutASnapshotFails(t *testing.T) {
	m := NewMetrics(func() (Status, error) { return Status{}, errors.New("slow") }, false)
	if _, err := m.Registry.Gather(); err == nil || !strings.Contains(err.Error(), "slow") {
		t.Errorf("error %v", err)
	}
}

func TestScrapeSurvivesAnOddSnapshot(t *testing.T) {
	for situation, s := range map[string]Status{
		"nothing": {},
		"everything twice": {
			Devices: []Device{{Name: "veil0"}, {Name: "veil0"}},
			Peers: []Peer{{Name: "b", Device: "veil0", State: PeerUp},
				{Name: "b", Device: "veil0", State: PeerUp},
				{Name: "b", Device: "veil1", State: "odd"}},
			Guard:   Guard{Drops: []Drop{{Name: "x", Packets: 1}, {Name: "x", Packets: 2}}},
			Refused: []cluster.Refusal{{Node: "e"}, {Node: "e"}},
		},
		"a clock that went back": {Peers: []Peer{{Name: "b", Device: "veil0",
			Handshake: now.Add(time.Hour)}}, Table: TableStatus{Waiting: now.Add(time.Hour)}},
	} {
		t.Run(situation, func(t *testing.T) {
			families := gather(t, metricsOf(s))
			if got, _ := value(families, "kubeveil_table_lag_seconds", ""); got != 0 {
				t.Errorf("lag %v", got)
			}
		})
	}
}

func TestEveryDescriptionIsCollected(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	s := busy()
	counts := map[string]uint64{"a": 1}
	s.Services = &Services{Tables: []ServiceTable{{Limit: LimitFrontends, Used: 1, Size: 2}},
		Chosen:       []ServiceCount{{Where: "socket", What: "tcp", Count: 1}},
		Refused:      []ServiceCount{{Where: "packet", What: "no_backend", Count: 1}},
		FastPathLeft: []FastPathLeft{{Reason: LeftLink, Count: 1}},
		LeftOut:      []LeftOut{{Kind: "Service", Namespace: "a", Count: 1}},
		APIServers:   []APIServer{{State: "good", RoundTrip: time.Second}},
		APIFrontends: []APIFrontend{{}}}
	s.Policy = &Policy{NotEnforced: map[string]int{"NetworkPolicy": 1},
		Ignored: &IgnoredAddrs{Shared: 1}, Drops: counts}
	s.Connections = &Connections{Opened: []PodConnections{{Pod: "a/b", Opened: 1}},
		Limited:      []PodConnections{{Pod: "a/b", Opened: 1}},
		LimitedSites: []SiteConnections{{Site: "b", Opened: 1}}}
	s.DropSamples = &DropSamples{Skipped: counts}
	s.Sites = []Site{{Site: cluster.Site{Name: "b"}, Exports: &SiteExports{Open: 1}}}
	registry.MustRegister(&collector{snapshot: func() (Status, error) { return s, nil },
		perPeer: true, now: func() time.Time { return now }})
	families, err := registry.Gather()
	errtest.Must(t, err)
	if len(families) != len(descs) {
		t.Errorf("%d families for %d descriptions", len(families), len(descs))
	}
}
