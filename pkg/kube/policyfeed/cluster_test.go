package policyfeed

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

func parseCluster(t *testing.T, spec string) feed.Parsed[policy.ClusterPolicy] {
	t.Helper()
	if !json.Valid([]byte(spec)) {
		t.Fatalf("not JSON: %s", spec)
	}
	return parseClusterPolicy(&object.Object{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: json.RawMessage(spec)})
}

func TestClusterPolicyIsParsed(t *testing.T) {
	p := parseCluster(t, `{"tier": "Baseline", "priority": 5,
		"subject": {"pods": {"namespaceSelector": {"matchLabels": {"team": "a"}},
			"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}},
		"ingress": [
			{"name": "one", "action": "Accept", "from": [{"namespaces": {}}],
				"protocols": [{"tcp": {"destinationPort": {"number": 80}}},
					{"udp": {"destinationPort": {"range": {"start": 5, "end": 9}}}},
					{"sctp": {}}, {"destinationNamedPort": "web"}]},
			{"action": "Pass", "from": [{"namespaces": {"matchLabels": {"team": "b"}}}]}],
		"egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0/8", "fd00::/8"]},
			{"namespaces": {"matchLabels": {"team": "b"}}}, {"nodes": {"matchLabels": {"gpu": "yes"}}}]}]}`)
	if p.Problem != "" || p.Value == nil {
		t.Fatalf("%+v", p)
	}

	one := func(key, value string) *policy.Selector {
		return &policy.Selector{{Key: key, Op: policy.In, Values: []string{value}}}
	}
	block := func(text string) policy.Peer {
		return policy.Peer{Block: &policy.Block{CIDR: netip.MustParsePrefix(text)}}
	}
	want := policy.ClusterPolicy{Name: "a", Tier: policy.Baseline, Priority: 5,
		Namespaces: *one("team", "a"), Pods: policy.Selector{{Key: "app", Op: policy.Exists}},
		Denies: [2]bool{true, true},
		Rules: [2][]policy.ClusterRule{{
			{Action: policy.Accept,
				Peers: []policy.Peer{{Namespaces: &policy.Selector{}, Pods: &policy.Selector{}}},
				Ports: []policy.Port{{Proto: policy.TCP, First: 80, Last: 80},
					{Proto: policy.UDP, First: 5, Last: 9}, {Proto: policy.SCTP},
					{Proto: policy.TCP, Name: "web"}, {Proto: policy.UDP, Name: "web"},
					{Proto: policy.SCTP, Name: "web"}}},
			{Action: policy.Pass,
				Peers: []policy.Peer{{Namespaces: one("team", "b"), Pods: &policy.Selector{}}}},
		}, {
			{Action: policy.Deny, Peers: []policy.Peer{block("10.0.0.0/8"), block("fd00::/8"),
				{Namespaces: one("team", "b"), Pods: &policy.Selector{}}, {Nodes: one("gpu", "yes")}}},
		}}}
	if d := cmp.Diff(want, *p.Value, cmpopts.EquateComparable(netip.Prefix{}),
		cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

// A ClusterNetworkPolicy with a part that is not understood allows no more than its text does.
func TestClusterPolicyThatIsNotUnderstoodDenies(t *testing.T) {
	const subject = `"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}`
	ingress := func(rule string) string { return "{" + subject + `, "ingress": [` + rule + "]}" }
	egress := func(rule string) string { return "{" + subject + `, "egress": [` + rule + "]}" }
	ports := func(text string) string {
		return ingress(`{"action": "Accept", "from": [{"namespaces": {}}], "protocols": [` + text +
			"]}")
	}
	both, in, out := [2]bool{true, true}, [2]bool{true, false}, [2]bool{false, true}

	for name, tt := range map[string]struct {
		spec   string
		denies [2]bool
	}{
		"no object":    {`[]`, both},
		"a wrong type": {`{"tier": 7}`, both},
		"field of a later version": {"{" + subject + `, "later": 1, "ingress": [{"action": "Accept",
			"from": [{"namespaces": {}}]}]}`, in},
		"field of a rule": {ingress(`{"action": "Accept", "from": [{"namespaces": {}}], "later": 1}`),
			in},
		"tier": {`{"tier": "Other", "subject": {"namespaces": {}}, "egress": [{"action": "Accept",
			"to": [{"namespaces": {}}]}]}`, out},
		"no subject": {`{"tier": "Admin", "ingress": [{"action": "Accept",
			"from": [{"namespaces": {}}]}]}`, in},
		"two subjects": {`{"tier": "Admin", "subject": {"namespaces": {}, "pods":
			{"namespaceSelector": {}, "podSelector": {}}}, "ingress": [{"action": "Accept",
			"from": [{"namespaces": {}}]}]}`, in},
		"operator of the subject": {`{"tier": "Admin", "subject": {"namespaces":
			{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}},
			"ingress": [{"action": "Accept", "from": [{"namespaces": {}}]}]}`, in},
		"action":                    {ingress(`{"action": "Log", "from": [{"namespaces": {}}]}`), in},
		"no peers of its direction": {ingress(`{"action": "Accept", "to": [{"namespaces": {}}]}`), in},
		"networks at ingress":       {ingress(`{"action": "Accept", "from": [{"networks": ["::/0"]}]}`), in},
		"nodes at ingress":          {ingress(`{"action": "Accept", "from": [{"nodes": {}}]}`), in},
		"two fields of a peer": {egress(`{"action": "Accept", "to": [{"namespaces": {},
			"networks": ["::/0"]}]}`), out},
		"a later field of a known peer": {egress(`{"action": "Accept", "to": [{"namespaces": {},
			"later": 1}]}`), out},
		"no prefix":       {egress(`{"action": "Accept", "to": [{"networks": ["10.0.0.0"]}]}`), out},
		"port 0":          {ports(`{"tcp": {"destinationPort": {"number": 0}}}`), in},
		"port 65536":      {ports(`{"tcp": {"destinationPort": {"number": 65536}}}`), in},
		"range backwards": {ports(`{"tcp": {"destinationPort": {"range": {"start": 9, "end": 5}}}}`), in},
		"number and range": {ports(`{"tcp": {"destinationPort": {"number": 1,
			"range": {"start": 1, "end": 5}}}}`), in},
		"two protocols":      {ports(`{"tcp": {}, "udp": {}}`), in},
		"no protocol":        {ports(`{}`), in},
		"protocol and name":  {ports(`{"tcp": {}, "destinationNamedPort": "web"}`), in},
		"a later protocol":   {ports(`{"icmp": {}}`), in},
		"a later port field": {ports(`{"tcp": {"destinationPort": {"number": 1, "not": 2}}}`), in},
	} {
		t.Run(name, func(t *testing.T) {
			p := parseCluster(t, tt.spec)
			if p.Problem == "" || p.Value == nil || p.Value.Invalid == "" ||
				len(p.Value.Rules[0])+len(p.Value.Rules[1]) > 0 || p.Value.Denies != tt.denies {
				t.Errorf("%+v", p.Value)
			}
		})
	}

	// The API says what a peer of an unknown field means; the planner does it.
	for name, peer := range map[string]string{"later": `{"later": {}}`, "empty": `{}`,
		"domainNames": `{"domainNames": ["example.com"]}`,
		"no networks": `{"networks": []}`} {
		p := parseCluster(t, egress(`{"action": "Deny", "to": [`+peer+`, {"namespaces": {}}]}`))
		if p.Problem != "" || len(p.Value.Rules[policy.Egress]) != 1 ||
			!p.Value.Rules[policy.Egress][0].Unknown {
			t.Errorf("peer %s: %+v", name, p)
		}
	}
}

func FuzzClusterPolicy(f *testing.F) {
	for _, spec := range []string{`{}`, `{"tier": "Admin", "subject": {"namespaces": {}},
		"ingress": [{"action": "Accept", "from": [{"networks": ["::/0"]}]}]}`} {
		f.Add([]byte(spec))
	}
	f.Fuzz(func(t *testing.T, spec []byte) {
		p := parseClusterPolicy(&object.Object{Spec: spec,
			ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		if p.Value == nil {
			t.Fatal("the policy is gone")
		}
		if (p.Problem != "") != (p.Value.Invalid != "") {
			t.Fatalf("%+v", p)
		}
		if p.Value.Invalid != "" && len(p.Value.Rules[0])+len(p.Value.Rules[1]) > 0 {
			t.Fatal("rules of a policy that could not be read")
		}
		of := planner.New("node-1")
		of.PutClusterPolicy(*p.Value)
		of.Plan()
	})
}
