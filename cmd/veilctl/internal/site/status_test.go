package site

import (
	"bytes"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func condition(kind string, status metav1.ConditionStatus, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Message: message}
}

// good are the conditions of a link without a problem.
var good = []metav1.Condition{condition("Ready", "True", ""), condition("Readable", "True", ""),
	condition("Overlap", "False", ""), condition("TokenEnds", "False", "")}

// Each site has a line, and each problem is shown once.
func TestReport(t *testing.T) {
	bad := map[string]map[string]string{"b": {"b/node-2": "is silent at node x"}}
	cfg := config.Config{Sites: []cluster.Site{{Name: "b"}, {Name: "c", Reach: cluster.ReachAll},
		{Name: "d", Reach: cluster.ReachNone}, {Name: "e"}, {Name: "f"}}}
	links := map[string]linkStatus{
		"b": {Nodes: 3, Imports: 2, Exports: 1, Conditions: good},
		"c": {Nodes: 1, Refused: 4, Problems: []string{"endpoint \x1b[2J is refused"},
			Conditions: []metav1.Condition{
				condition("Ready", "False", "endpoint \x1b[2J is refused"),
				condition("TokenEnds", "True", "the token ends")}},
		"d": {Conditions: []metav1.Condition{condition("Ready", "False", "the site is closed")}},
		"f": {Conditions: good},
		"x": {},
	}
	r := &report{VeilSite: "2 of 2 replicas are ready", NotExported: map[string]uint64{"x": 3,
		"y": 4}}
	r.addSites(cfg, links, bad)

	var out bytes.Buffer
	errtest.Must(t, r.show(verb.Call{Out: &out}))
	for _, want := range []string{
		"b     exports  PROBLEM  3      2   2        1        0\n",
		"c     all      PROBLEM  1      1   0        0        4\n",
		"d     none     closed   0      0", "e     exports  PROBLEM", "f     exports  ok",
		"dropped as not exported: 7 packets (x 3, y 4)\n",
		"PROBLEM site b: node b/node-2 is silent at node x\n",
		"PROBLEM site c: endpoint \ufffd[2J is refused\nPROBLEM site c: the token ends\n",
		"PROBLEM site e: veil-site has not read the configuration yet",
		"PROBLEM the configuration has no site x, and its SiteLink is left",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "site d:") {
		t.Errorf("a closed site is a problem:\n%s", &out)
	}
}

// A peer that one device reaches is up.
func TestBadPeers(t *testing.T) {
	bad := badPeers([]telemetry.Peer{{Name: "b/one", State: telemetry.PeerUp},
		{Name: "b/two", State: telemetry.PeerSilent}, {Name: "b/two", State: telemetry.PeerIdle},
		{Name: "b/three", State: telemetry.PeerRefused}})
	if len(bad) != 1 || bad["b/three"] != telemetry.PeerRefused {
		t.Errorf("%v", bad)
	}
}

// Conditions of exports and imports: Conflict must be false, and the others true.
func TestProblemsOfServices(t *testing.T) {
	for want, conditions := range map[string][]any{
		"": {map[string]any{"type": "Valid", "status": "True"},
			map[string]any{"type": "Conflict", "status": "False"}},
		"Conflict=True: the exports differ": {map[string]any{"type": "Conflict", "status": "True",
			"message": "the exports differ"}},
		"Ready=False: Pending": {map[string]any{"type": "Ready", "status": "False",
			"reason": "Pending"}},
	} {
		got := serviceProblemOf(unstructured.Unstructured{Object: map[string]any{
			"status": map[string]any{"conditions": conditions}}})
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := serviceProblemOf(unstructured.Unstructured{Object: map[string]any{}}); got != "" {
		t.Error(got)
	}
}
