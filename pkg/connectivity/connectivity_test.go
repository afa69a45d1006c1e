package connectivity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

func TestJudge(t *testing.T) {
	quiet, tunnel, clear, lost := Seen{Frames: 100}, Seen{Frames: 100, Tunnel: 20},
		Seen{Frames: 100, Clear: 6}, Seen{Frames: 100, Tunnel: 20, Dropped: 1}
	both := func(a, b Seen) observation {
		return observation{answered: 3, delivered: true, near: a, far: &b}
	}
	refused := func(a, b Seen) observation { return observation{near: a, far: &b} }
	tests := []struct {
		name    string
		promise Verdict
		o       observation
		want    Verdict
	}{
		{"tunnel on both sides", Encrypted, both(tunnel, tunnel), Encrypted},
		{"tunnel on the sender's side alone", Encrypted, both(tunnel, quiet), Unseen},
		{"the receiver's side is not read", Encrypted,
			observation{answered: 1, delivered: true, near: tunnel}, Encrypted},
		{"too few tunnel frames for the messages", Encrypted, both(Seen{Tunnel: 5}, tunnel),
			Unseen},
		{"delivered by nothing that was read", Encrypted, both(quiet, quiet), Unseen},
		{"in clear", Encrypted, both(clear, clear), InClear},
		{"in clear beside a tunnel", Encrypted, both(Seen{Tunnel: 20, Clear: 1}, tunnel), InClear},
		{"in clear on the receiver's side alone", Encrypted, both(tunnel, clear), InClear},
		{"in clear, and not answered", Encrypted, refused(clear, quiet), InClear},
		{"in clear, and frames lost", Encrypted, both(clear, lost), InClear},
		{"frames lost", Encrypted, both(tunnel, lost), Lost},
		{"not answered", Encrypted, refused(tunnel, tunnel), Refused},
		{"a refusal is kept", Refused, refused(tunnel, quiet), Refused},
		{"a refusal after the payload went out", Refused, refused(clear, quiet), InClear},
		{"a refusal that was answered", Refused, both(tunnel, tunnel), Encrypted},
		{"a refusal, and frames lost", Refused, refused(lost, quiet), Lost},
		{"stays, others use the tunnel", Stays, both(tunnel, tunnel), Stays},
		{"should stay, and was on an uplink", Stays, both(clear, quiet), InClear},
		{"outside", Outside, observation{answered: 1, delivered: true, near: clear}, Outside},
		{"outside, not answered", Outside, observation{near: clear}, InClear},
		{"outside, and nowhere seen", Outside,
			observation{answered: 1, delivered: true, near: quiet}, Unseen},
		{"outside, but through a tunnel", Outside,
			observation{answered: 1, delivered: true, near: tunnel}, Encrypted},
		{"host to host", HostToHost, both(clear, clear), HostToHost},
		{"host to host through a tunnel", HostToHost, both(tunnel, tunnel), Encrypted},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := judge(tt.promise, tt.o); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestJudgeControl(t *testing.T) {
	seen := func(a, b Seen) []Flow {
		return []Flow{{Way: Way{4, "udp"}, Verdict: HostToHost,
			Seen: map[string]Seen{"a": a, "b": b}}}
	}
	clear := Seen{Clear: 3}
	tests := []struct {
		name  string
		flows []Flow
		want  string
	}{
		{"seen by both", seen(clear, clear), ""},
		{"one is blind", seen(clear, Seen{Frames: 9}), "node b saw 0 frames of IPv4 UDP in clear"},
		{"one lost frames", seen(Seen{Clear: 3, Dropped: 2}, clear), "lost 2"},
		{"not seen", []Flow{{Way: Way{6, "tcp"}, Verdict: Unseen}},
			"IPv6 TCP from host to host was not seen in clear, but UNSEEN"},
		{"not walked", nil, "no address of the same family"},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := judgeControl(tt.flows)
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrBlind) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func aNode(name string, ready, schedulable bool, addrs ...string) remote.Node {
	n := remote.Node{Name: name, Ready: ready, Schedulable: schedulable}
	for _, a := range addrs {
		n.Addrs = append(n.Addrs, netip.MustParseAddr(a))
	}
	return n
}

func TestChooseNodes(t *testing.T) {
	all := []remote.Node{aNode("control", true, false), aNode("node-1", true, true),
		aNode("node-2", true, true), aNode("node-3", false, true), aNode("node-4", true, true)}
	tests := []struct {
		name  string
		all   []remote.Node
		names []string
		want  []string
		err   string
	}{
		{"the first two workers", all, nil, []string{"node-1", "node-2"}, ""},
		{"named, past taints", all, []string{"node-4", "control"}, []string{"node-4", "control"},
			""},
		{"one worker", all[:2], nil, nil,
			"needs two Linux nodes that are Ready and schedulable; there are: control (not " +
				"schedulable, or not Linux), node-1 (well)"},
		{"an unknown name", all, []string{"node-1", "node-9"}, nil,
			"node node-9 is not in the cluster"},
		{"one that is not Ready", all, []string{"node-1", "node-3"}, nil,
			"node node-3 is not Ready"},
		{"the same twice", all, []string{"node-1", "node-1"}, nil, "name two"},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := chooseNodes(tt.all, tt.names)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%v, want %q", err, tt.err)
				}
				return
			}
			var names []string
			for _, n := range got {
				names = append(names, n.Name)
			}
			if err != nil || !slices.Equal(names, tt.want) {
				t.Errorf("%v, %v; want %v", names, err, tt.want)
			}
		})
	}
}

func TestAPIPromise(t *testing.T) {
	a, b := aNode("a", true, true, "198.18.0.11", "fd42::b"), aNode("b", true, true, "198.18.0.12")
	tests := []struct {
		name      string
		endpoints string
		want      Verdict
	}{
		{"another node", "198.18.0.12", Encrypted},
		{"this node", "198.18.0.11", Stays},
		{"no node", "198.18.0.2", Outside},
		{"two that are no nodes", "198.18.0.2 198.18.0.3", Outside},
		{"this node and another", "198.18.0.11 198.18.0.12", ""},
		{"none", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var endpoints []netip.Addr
			for _, text := range strings.Fields(tt.endpoints) {
				endpoints = append(endpoints, netip.MustParseAddr(text))
			}
			got, err := apiPromise(endpoints, a, []remote.Node{a, b})
			if got != tt.want || (err != nil) != (tt.want == "") {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestLastAddr(t *testing.T) {
	for prefix, want := range map[string]string{
		"198.19.1.0/24": "198.19.1.255", "198.19.0.0/22": "198.19.3.255",
		"198.19.0.7/32": "198.19.0.7", "fd42:1:0:1::/64": "fd42:1:0:1:ffff:ffff:ffff:ffff",
	} {
		if got := lastAddr(netip.MustParsePrefix(prefix)); got.String() != want {
			t.Errorf("%s: %s, want %s", prefix, got, want)
		}
	}
}

// network stands in for the path between two nodes. The watchers of both nodes report the same.
type network struct {
	// seen is the result of each watcher for a flow. answered reports whether a flow is answered.
	seen     leak.Result
	answered bool
	sent     []string
}

type fakeWatch struct{ n *network }

func (w fakeWatch) Ask(_ context.Context, _ string, answer any) error {
	return remarshal(w.n.seen, answer)
}
func (fakeWatch) Close() {}

type fakeSend struct{ n *network }

func (s fakeSend) Ask(_ context.Context, line string, answer any) error {
	s.n.sent = append(s.n.sent, line)
	if !s.n.answered {
		return remarshal(map[string]any{"error": "connection refused"}, answer)
	}
	return remarshal(map[string]any{"result": remote.Sent{Sent: 3, Received: 3}}, answer)
}
func (fakeSend) Close() {}

func remarshal(from, to any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// newStage is a stage with IPv4 only.
func newStage(n *network) *stage {
	addr := func(text string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(text)} }
	a, b := aNode("a", true, true, "198.18.0.11"), aNode("b", true, true, "198.18.0.12")
	b.PodPrefixes = []netip.Prefix{netip.MustParsePrefix("198.19.1.0/24")}
	s := &stage{
		nodes: []remote.Node{a, b}, all: []remote.Node{a, b},
		client: &remote.Pod{Name: "client", Node: "a", Addrs: addr("198.19.0.2")},
		local:  &remote.Pod{Name: "local", Node: "a", Addrs: addr("198.19.0.3")},
		server: &remote.Pod{Name: "server", Node: "b", Addrs: addr("198.19.1.2")},
		hosts: [2]*remote.Pod{{Name: "host-a", Node: "a", HostNetwork: true},
			{Name: "host-b", Node: "b", HostNetwork: true}},
		service: &remote.Service{Addrs: addr("198.18.128.9"),
			NodePorts: map[string]int{"tcp": 30001, "udp": 30002}},
	}
	s.opts.fill()
	s.watchers = []watcher{{"a", fakeWatch{n}}, {"b", fakeWatch{n}}}
	s.senders = map[*remote.Pod]sender{s.client: {fakeSend{n}}, s.hosts[0]: {fakeSend{n}}}
	return s
}

// The targets of all kinds of flow in a cluster with one family.
func TestTargets(t *testing.T) {
	n := &network{seen: leak.Result{Kinds: map[leak.Kind]uint64{leak.Tunnel: 9}},
		answered: true}
	s := newStage(n)
	s.classes = append([]class{control}, classes...)
	want := map[string]string{
		"node to node":                           "198.18.0.12:40701 198.18.0.12:40701",
		"pod to pod, same node":                  "198.19.0.3:7000 198.19.0.3:7000",
		"pod to pod, other node":                 "198.19.1.2:7000 198.19.1.2:7000",
		"pod to its own node":                    "198.18.0.11:40701 198.18.0.11:40701",
		"pod to other node":                      "198.18.0.12:40701 198.18.0.12:40701",
		"node to pod, same node":                 "198.19.0.3:7000 198.19.0.3:7000",
		"node to pod, other node":                "198.19.1.2:7000 198.19.1.2:7000",
		"pod to service, backend on other node":  "198.18.128.9:7000 198.18.128.9:7000",
		"node to service, backend on other node": "198.18.128.9:7000 198.18.128.9:7000",
		"pod to hostPort of other node":          "198.18.0.12:40700 198.18.0.12:40700",
		"node to hostPort of other node":         "198.18.0.12:40700 198.18.0.12:40700",
		"pod to NodePort of other node":          "198.18.0.12:30001 198.18.0.12:30002",
		"node to NodePort of other node":         "198.18.0.12:30001 198.18.0.12:30002",
		"pod to a pod address that nobody has":   "198.19.1.254:7000 198.19.1.254:7000",
	}

	for _, c := range s.classes {
		flows, err := s.walk(t.Context(), c)
		errtest.Must(t, err)
		var got []string
		for _, f := range flows {
			got = append(got, f.To.String())
		}
		if text := strings.Join(got, " "); text != want[c.name] {
			t.Errorf("%s: %q, want %q", c.name, text, want[c.name])
		}
		delete(want, c.name)
	}

	if len(want) > 0 {
		t.Errorf("not tested: %v", want)
	}
}

// A network without encryption must fail the walk wherever encryption is promised, and the report
// must say what was seen.
func TestClearNetworkFails(t *testing.T) {
	n := &network{seen: leak.Result{Frames: 8,
		Kinds: map[leak.Kind]uint64{leak.LeakCanary: 6},
		Examples: []leak.Example{{Link: "eth0", Kind: leak.LeakCanary,
			Detail: "canary in not-allowed"}}}, answered: true}
	s := newStage(n)
	var r Report
	for _, c := range append([]class{control}, classes...) {
		flows, err := s.walk(t.Context(), c)
		errtest.Must(t, err)
		r.add(flows)
	}

	if r.OK() {
		t.Error("the report is well")
	}

	for _, f := range r.Flows {
		if wantOK := f.Promised == HostToHost; f.OK != wantOK {
			t.Errorf("%s %s: %s", f.Class, f.Way, f.Verdict)
		}
	}

	r.Nodes = []string{"a", "b"}
	var out bytes.Buffer
	errtest.Must(t, r.WriteEnd(&out))

	for _, want := range []string{`promised is "encrypted", observed "IN CLEAR"`,
		"eth0: canary in not-allowed", "8 frames, 0 of a tunnel, 6 with the payload in clear",
		"28 flows, 22 NOT as promised"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}

func TestRefusalIsTriedOnce(t *testing.T) {
	n := &network{seen: leak.Result{Kinds: map[leak.Kind]uint64{}}}
	s := newStage(n)
	i := slices.IndexFunc(classes, func(c class) bool { return c.promise == Refused })
	flows, err := s.walk(t.Context(), classes[i])
	if err != nil || len(flows) != 2 || len(n.sent) != 2 || !flows[0].OK ||
		!strings.Contains(flows[0].Error, "connection refused") {
		t.Errorf("%d tries, %+v, %v", len(n.sent), flows, err)
	}
}

func TestWriteFlows(t *testing.T) {
	flow := func(family int, proto string, v Verdict) Flow {
		return Flow{Class: "pod to pod", Way: Way{family, proto}, Promised: Encrypted, Verdict: v,
			OK: v == Encrypted}
	}
	var out bytes.Buffer
	err := WriteFlows(&out, []Flow{flow(4, "tcp", Encrypted), flow(4, "udp", Encrypted),
		flow(6, "tcp", InClear), flow(6, "udp", Encrypted)})
	want := "ok  pod to pod                               encrypted               IPv4 TCP UDP, " +
		"IPv6 UDP\n" +
		"NOT pod to pod                               IN CLEAR                IPv6 TCP\n"
	if err != nil || out.String() != want {
		t.Errorf("%v\n%q\n%q", err, out.String(), want)
	}
}

// Each name of a class and of a verdict is shorter than its column.
func TestNamesFitTheirColumns(t *testing.T) {
	for _, c := range append([]class{control, {name: apiName}}, classes...) {
		if len(c.name) >= classWidth {
			t.Errorf("%q is too long", c.name)
		}
	}
	for _, v := range []Verdict{Encrypted, Refused, Outside, HostToHost, Stays, InClear, Unseen,
		Lost} {
		if len(v) >= verdictWidth {
			t.Errorf("%q is too long", v)
		}
	}
}

func TestEmptyReportIsNotWell(t *testing.T) {
	if (Report{}).OK() {
		t.Error("nothing was walked, and all is well")
	}
}

func TestEndpointPort(t *testing.T) {
	for object, want := range map[string]int{
		`{"spec":{"keys":[],"endpoints":["198.18.0.11:51820","[fd42::b]:51820"]}}`: 51820,
		`{"spec":{"keys":[]}}`:                   0,
		`{"spec":{"endpoints":["198.18.0.11"]}}`: 0,
		`not JSON`:                               0,
	} {
		if got, err := endpointPort([]byte(object)); got != want || (err != nil) != (want == 0) {
			t.Errorf("%s: %d, %v", object, got, err)
		}
	}
}
