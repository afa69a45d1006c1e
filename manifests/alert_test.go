package manifests_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// ruleGroups are the groups of a PrometheusRule, which are the content of a file of rules.
type ruleGroups struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []struct {
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			For         string            `json:"for,omitempty"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

// rulesOf returns the rules of a component.
func rulesOf(t *testing.T, component string) ruleGroups {
	t.Helper()
	var rule struct {
		Spec ruleGroups `json:"spec"`
	}
	errtest.Must(t, yaml.Unmarshal(filetest.Read(t, filepath.Join("components", component,
		"prometheusrule.yaml")), &rule))
	return rule.Spec
}

// dashboardQueries returns the queries of the dashboard, as Grafana sends them for all nodes.
func dashboardQueries(t *testing.T) (queries []string) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	errtest.Must(t, json.Unmarshal(filetest.Read(t,
		"components/servicemonitor/dashboard.json"), &dashboard))
	variables := strings.NewReplacer("$instance", ".+", "$__rate_interval", "2m")
	for _, p := range dashboard.Panels {
		if p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q has no title or no query", p.Title)
		}
		for _, target := range p.Targets {
			queries = append(queries, variables.Replace(target.Expr))
		}
	}
	return queries
}

var metricName = regexp.MustCompile(`\bkubeveil_\w+`)

// existing checks that the metrics of a query are in docs/reference, which is tested against the
// code. It returns how many there are.
func existing(t *testing.T, reference, query string) int {
	t.Helper()
	names := metricName.FindAllString(query, -1)
	for _, name := range names {
		if !strings.Contains(reference, "| `"+strings.TrimSuffix(name, "_bucket")+"` |") {
			t.Errorf("%s: docs/reference/metrics.md lacks %s", query, name)
		}
	}
	return len(names)
}

func TestAlertsAndDashboardNameMetricsThatExist(t *testing.T) {
	reference := string(filetest.Read(t, "../docs/reference/metrics.md"))
	named := 0
	for _, query := range dashboardQueries(t) {
		named += existing(t, reference, query)
	}
	if named < 10 {
		t.Errorf("the dashboard uses %d metrics", named)
	}

	for _, component := range []string{"servicemonitor", "csi-servicemonitor",
		"sites-servicemonitor"} {
		named := 0
		for _, g := range rulesOf(t, component).Groups {
			for _, r := range g.Rules {
				named += existing(t, reference, r.Expr)
				if r.Annotations["summary"] == "" || r.Annotations["description"] == "" ||
					r.Labels["severity"] == "" {
					t.Errorf("%s has no summary, description or severity", r.Alert)
				}
			}
		}
		if named < 5 {
			t.Errorf("%s: %d metrics are used", component, named)
		}
	}
}

// alertCase is a situation at minute 40, in promtool's notation: axn is a, n more times; a+bxn adds
// b each minute.
type alertCase struct {
	// alert is the only one that fires; "" means that none does.
	alert  string
	series samples
}

// evaluated is the minute at which the case is judged. An alert that waits an hour needs more than
// its samples of the first 40 minutes.
func (c alertCase) evaluated() string {
	if c.alert == "KubeveilVolumeUpkeepFails" {
		return "90m"
	}
	return "40m"
}

// samples are values by series.
type samples = map[string]string

const (
	always = "1x40"
	now    = "0x38 1x1"
	rising = "0+5x40"
	oneGo  = "0x30 1x10"
)

// blocked returns the name of a counter of the guard.
func blocked(reason string) string {
	return `kubeveil_plaintext_blocked_total{instance="a", reason="` + reason + `"}`
}

var alertCases = []alertCase{
	{"", samples{`kubeveil_guard_in_force{instance="a"}`: always,
		blocked("pod_link_local"): rising, blocked("pod_to_range"): "7x40",
		blocked("pod_to_vip"): oneGo, blocked("tunnel_unknown_source"): rising,
		`kubeveil_peers{instance="a", state="silent"}`:             "0x40",
		`kubeveil_peers{instance="b", state="silent"}`:             now,
		`kubeveil_device_up{instance="a", device="veil0"}`:         always,
		`kubeveil_tunnel_offload{instance="a", offload="tun_udp"}`: "0x40",
		`kubeveil_tunnel_dropped_total{reason="forged"}`:           oneGo,
		`kubeveil_tunnel_dropped_total{reason="no_session"}`:       rising,
		`kubeveil_table_lag_seconds`:                               "20x40",
		`kubeveil_problems`:                                        now,
		`kubeveil_policy_ignored_addresses`:                        now,
		`up{namespace="kube-system", service="veild-metrics"}`:     "1x20 0x3 1x17",
		restarts("veil-wg"):                                        rising,
		ended("Error"):                                             always,
		restarts("etcd"):                                           rising}},

	{"KubeveilGuardNotInForce", samples{"kubeveil_guard_in_force": "0x40"}},
	{"KubeveilPlaintextBlocked", samples{blocked("pod_to_range"): now}},
	{"KubeveilPlaintextBlocked", samples{blocked("pod_to_node"): now}},
	{"KubeveilPlaintextBlocked", samples{blocked("src_in_range"): now}},
	{"KubeveilPlaintextBlocked", samples{blocked("dst_in_range"): now}},
	{"KubeveilTunnelToOutside", samples{blocked("tunnel_to_outside"): now}},
	{"KubeveilClaimRefused", samples{`kubeveil_claims_refused{node="b"}`: always}},
	{"KubeveilPodSourceSpoofed", samples{blocked("pod_spoofed_source"): now}},
	{"KubeveilPodToMissingService", samples{blocked("pod_to_vip"): rising}},
	{"KubeveilConnectionsForgotten", samples{blocked("pod_midstream"): now}},
	{"KubeveilTunnelSourceUnknown", samples{blocked("tunnel_unknown_source"): now,
		`kubeveil_peers{instance="a", state="silent"}`: now}},
	{"KubeveilPodMarkLost", samples{blocked("pod_mark_lost"): now}},
	{"KubeveilPodsUnmarked", samples{blocked("pod_unmarked"): now}},
	{"KubeveilMarksRestored", samples{"kubeveil_marks_restored_total": now}},
	{"KubeveilTunnelForged", samples{
		`kubeveil_tunnel_dropped_total{reason="inner_source"}`: rising}},

	{"KubeveilVeildDown", samples{
		`up{namespace="kube-system", service="veild-metrics"}`: "1x20 0x20"}},
	{"KubeveilProblem", samples{"kubeveil_problems": always}},
	{"KubeveilOutOfMemory", samples{restarts("veil-wg"): now,
		ended("OOMKilled"): always}},
	{"KubeveilOutOfMemory", samples{ // one process of the container
		`container_oom_events_total{namespace="kube-system", container="veil-wg"}`: now}},
	{"KubeveilTableLags", samples{"kubeveil_table_lag_seconds": "0x38 31x1"}},
	{"KubeveilPeerSilent", samples{`kubeveil_peers{state="silent"}`: always}},
	{"KubeveilTunnelDown", samples{`kubeveil_device_up{device="veil0"}`: "0x40"}},
	{"KubeveilOffloadOff", samples{
		`kubeveil_tunnel_offload{instance="a", offload="tun_udp"}`: "1x10 0x29"}},
	{"KubeveilPeersSentSingly", samples{"kubeveil_tunnel_peers_sent_singly": always}},
	{"KubeveilDropsNotSampled", samples{"kubeveil_drops_sampled": "0x40"}},

	{"KubeveilPolicyNotEnforced", samples{"kubeveil_policy_not_enforced": always}},
	{"KubeveilPolicyIgnoresAddresses", samples{
		"kubeveil_policy_ignored_addresses": always}},
	{"KubeveilPodConnectionsLimited", samples{
		`kubeveil_pod_connections_limited{exported_pod="shop/web"}`: "90x40"}},
	{"KubeveilServiceObjectsLeftOut", samples{
		"kubeveil_service_objects_left_out": always}},

	{"", samples{"kubeveil_csi_orphans": now, "kubeveil_csi_staged_unused": now,
		"kubeveil_csi_refused_total": "3x40", "kubeveil_csi_unsealed_total": "3x40",
		"kubeveil_csi_upkeep_failures_total": oneGo}},
	{"KubeveilDiskRefused", samples{`kubeveil_csi_refused_total{kind="header"}`: now}},
	{"KubeveilVolumeFenced", samples{"kubeveil_csi_fenced_total": now}},
	{"KubeveilVolumeOrphaned", samples{"kubeveil_csi_orphans": always}},
	{"KubeveilVolumeForgotten", samples{"kubeveil_csi_staged_unused": always}},
	{"KubeveilVolumeUnsealed", samples{"kubeveil_csi_unsealed_total": "0x5 1x35"}},
	{"KubeveilKeyServiceAway", samples{"kubeveil_csi_key_service_failures_total": rising}},
	{"KubeveilVolumeUpkeepFails", samples{
		`kubeveil_csi_upkeep_failures_total{work="trim"}`: "0+5x100"}},

	{"", samples{`kubeveil_site_readable{site="b"}`: "1x20 0x5 1x15",
		`kubeveil_site_token_end_timestamp_seconds{site="b"}`: "700000x40",
		`kubeveil_site_refused{site="b"}`:                     now,
		`kubeveil_site_writes_total{result="failed"}`:         "7x40",
		`kubeveil_site_config_valid`:                          always,
		`kubeveil_site_leader{instance="a"}`:                  always,
		`kubeveil_site_leader{instance="b"}`:                  "0x40"}},
	{"KubeveilSiteNotRead", samples{`kubeveil_site_readable{site="b"}`: "0x40"}},
	{"KubeveilSiteTokenEnds", samples{
		`kubeveil_site_token_end_timestamp_seconds{site="b"}`: "600000x40"}},
	{"KubeveilSiteRefused", samples{`kubeveil_site_refused{site="b"}`: always}},
	{"KubeveilSiteWritesFail", samples{`kubeveil_site_writes_total{result="failed"}`: rising}},
	{"KubeveilSiteConfigInvalid", samples{"kubeveil_site_config_valid": "0x40"}},
	{"KubeveilSiteNotLed", samples{leads: "0x40"}},
	{"KubeveilSiteNotLed", samples{"kubeveil_site_config_valid": always}}, // no replica is scraped
}

// leads is a series of veil-site. Without it an alert fires, so all cases but those of that alert
// have it.
const leads = "kubeveil_site_leader"

// restarts and ended return names of series of a container of the pod w.
func restarts(container string) string {
	return fmt.Sprintf(`kube_pod_container_status_restarts_total{namespace="kube-system", `+
		`pod="w", container=%q}`, container)
}

func ended(reason string) string {
	return fmt.Sprintf(`kube_pod_container_status_last_terminated_reason{`+
		`namespace="kube-system", pod="w", container="veil-wg", reason=%q}`, reason)
}

// Prometheus' own program evaluates the rules: in each case exactly its alert fires. It reads the
// queries of the dashboard, too.
func TestAlertsFireAtTheirCase(t *testing.T) {
	type object = map[string]any
	var tests []object
	tested := map[string]bool{}
	for _, c := range alertCases {
		tested[c.alert] = true
		var input, firing []object
		for name, values := range c.series {
			input = append(input, object{"series": name, "values": values})
		}
		if c.alert != "KubeveilSiteNotLed" {
			input = append(input, object{"series": leads, "values": "1x100"})
		}
		if c.alert != "" {
			firing = append(firing, object{"value": 1,
				"labels": fmt.Sprintf("{alertname=%q}", c.alert)})
		}
		tests = append(tests, object{"name": "case of " + c.alert, "interval": "1m",
			"input_series": input, "promql_expr_test": []object{{"eval_time": c.evaluated(),
				"expr":        `group by (alertname) (ALERTS{alertstate="firing"})`,
				"exp_samples": firing}}})
	}

	rules := rulesOf(t, "servicemonitor")
	for _, component := range []string{"csi-servicemonitor", "sites-servicemonitor"} {
		rules.Groups = append(rules.Groups, rulesOf(t, component).Groups...)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if !tested[r.Alert] {
				t.Errorf("%s has no case in alertCases", r.Alert)
			}
		}
	}

	dir := t.TempDir()
	write := func(name string, v any) string {
		text, err := yaml.Marshal(v)
		errtest.Must(t, err)
		path := filepath.Join(dir, name)
		filetest.Write(t, path, text, 0o600)
		return path
	}
	write("rules.yaml", rules)
	var panels []object
	for i, query := range dashboardQueries(t) {
		panels = append(panels, object{"record": fmt.Sprint("panel:", i), "expr": query})
	}
	write("dashboard.yaml", object{"groups": []object{{"name": "dashboard", "rules": panels}}})
	file := write("tests.yaml", object{"rule_files": []string{"rules.yaml", "dashboard.yaml"},
		"evaluation_interval": "1m", "tests": tests})
	promtool := nettest.BuildTool(t, "..", "promtool",
		"github.com/prometheus/prometheus/cmd/promtool", "-tags=remove_all_sd") // finds no targets
	out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput()
	if err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
