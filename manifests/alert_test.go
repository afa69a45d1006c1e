package manifests_test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
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

	for _, component := range []string{"servicemonitor", "csi-servicemonitor"} {
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
