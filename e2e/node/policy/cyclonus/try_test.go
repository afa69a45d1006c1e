package cyclonus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
)

// every is how many sets of policies there are for each that TestTriesOfCasesComeTrue tries, unless
// nettest.Long.
const every = 20

// triedPorts are the ports of the flows of a try, by protocol, in turns. More ports would need more
// rows per pod than a try has.
var triedPorts = []map[string]uint16{{"tcp": 80, "udp": 81}, {"tcp": 81, "udp": 80}}

// policySets returns the different sets of policies of the steps with the pods and namespaces of
// the first step, and that step.
func policySets(t *testing.T, d document) (sets [][]networkingv1.NetworkPolicy, first step) {
	t.Helper()
	text := func(v any) string {
		b, err := json.Marshal(v)
		errtest.Must(t, err)
		return string(b)
	}
	first = d.Cases[0].Steps[0]
	cluster := func(s step) string { return text([]any{s.Namespaces, s.Pods}) }
	known, want := map[string]bool{}, cluster(first)
	for _, c := range d.Cases {
		for _, s := range c.Steps {
			if set := text(s.Policies); len(s.Policies) > 0 && !known[set] && cluster(s) == want {
				known[set] = true
				sets = append(sets, s.Policies)
			}
		}
	}
	return sets, first
}

// triedSet is a set of policies. clusterwide has the specs of ClusterNetworkPolicies, by name.
type triedSet struct {
	namespaced  []networkingv1.NetworkPolicy
	clusterwide map[string]string
}

// triedLab is the cluster of cyclonus in a lab. Its pods are on two nodes.
type triedLab struct {
	*lab.Lab
	pods  map[string]*servedPod
	flows map[flowKey]*triedFlow
	// blocks replaces the ranges that cyclonus makes from the address of z/c.
	blocks *strings.Replacer
	// repeated counts tries during which a node changed its rules.
	repeated int
}

// newTriedLab makes the namespaces and pods of a step.
func newTriedLab(t *testing.T, s step, family lab.Family) (context.Context, *triedLab) {
	t.Helper()
	ctx, l := newPolicyLab(t, family)
	errtest.Must(t, errtest.Of(l.Control.Dynamic.Resource(nodetest.Definitions).Create(ctx,
		nodetest.ClusterPolicyDefinition(), metav1.CreateOptions{})))
	for _, n := range s.Namespaces {
		errtest.Must(t, l.Control.AddNamespace(ctx, n.Name))
		all := l.Control.Client.CoreV1().Namespaces()
		have, err := all.Get(ctx, n.Name, metav1.GetOptions{})
		errtest.Must(t, err)
		have.Labels = n.Labels
		errtest.Must(t, errtest.Of(all.Update(ctx, have, metav1.UpdateOptions{})))
	}

	w := &triedLab{Lab: l, pods: map[string]*servedPod{}}
	for i, p := range s.Pods {
		node := l.Nodes()[i%len(l.Nodes())]
		added := addPod(ctx, t, l, node, p)
		w.pods[p.Namespace+"/"+p.Name] = &servedPod{Pod: added, t: t, canary: l.Canary}
	}
	for i, n := range l.Nodes() {
		nodetest.WaitMembers(ctx, t, n, (len(s.Pods)+len(l.Nodes())-1-i)/len(l.Nodes()))
	}
	for _, p := range w.pods {
		p.serve()
	}
	w.inForce(ctx, t) // and the nodes know the kind ClusterNetworkPolicy
	w.blocks = blocksOf(t, s, w.pods["z/c"].Addrs[0])
	return ctx, w
}

func newPolicyLab(t *testing.T, family lab.Family) (context.Context, *lab.Lab) {
	t.Helper()
	opts := lab.Options{Nodes: 2, Family: family, VeildConfig: map[string]any{"policy": "kubernetes"}}
	if !nettest.Long() {
		return nodetest.NewLab(t, opts)
	}
	t.Parallel()
	return nodetest.LongLab(t, opts, 30*time.Minute)
}

// addPod makes a pod with the labels and ports of an object of cyclonus.
func addPod(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node, p corev1.Pod) *lab.Pod {
	t.Helper()
	no := false
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: p.Labels},
		Spec: corev1.PodSpec{NodeName: n.Name, AutomountServiceAccountToken: &no}}
	for _, c := range p.Spec.Containers {
		o.Spec.Containers = append(o.Spec.Containers,
			corev1.Container{Name: c.Name, Image: "none", Ports: c.Ports})
	}
	o, err := l.Control.Client.CoreV1().Pods(p.Namespace).Create(ctx, o, metav1.CreateOptions{})
	errtest.Must(t, err)
	errtest.Must(t, n.WaitReserved(ctx, o))
	pod, err := n.AddPod(ctx, p.Namespace+"-"+p.Name, lab.PodOptions{Object: o})
	errtest.Must(t, err)
	errtest.Must(t, pod.WriteStatus(ctx, o))
	return pod
}

// blocksOf returns what replaces the ranges of cyclonus by ranges around an address of the lab.
func blocksOf(t *testing.T, s step, to netip.Addr) *strings.Replacer {
	t.Helper()
	var pairs []string
	for _, p := range s.Pods {
		if p.Namespace != "z" || p.Name != "c" {
			continue
		}
		from := netip.MustParseAddr(p.Status.PodIP)
		for _, host := range []int{4, 8} { // the bits behind the prefix
			pairs = append(pairs, block(from, host), block(to, host))
		}
	}
	if len(pairs) == 0 {
		t.Fatal("cyclonus has no pod z/c")
	}
	return strings.NewReplacer(pairs...)
}

func block(a netip.Addr, host int) string {
	return netip.PrefixFrom(a, a.BitLen()-host).Masked().String()
}

// TestTriesOfCasesComeTrue tries the policies of cyclonus' cases, upstream's e2e cases among them,
// and ClusterNetworkPolicies, with veilctl on connections between all pods. A try changes nothing.
// When the policies then come in force, those connections end that the try named, and new ones are
// answered like them.
func TestTriesOfCasesComeTrue(t *testing.T) {
	nettest.NeedRoot(t)
	program := program(t)
	for _, family := range families {
		if family.name != "IPv4" && !nettest.Long() {
			continue
		}
		t.Run(family.name, func(t *testing.T) {
			sets, first := policySets(t, cases(t, program, family.flags...))
			of := lab.IPv4
			if family.name == "IPv6" {
				of = lab.IPv6
			}
			ctx, w := newTriedLab(t, first, of)
			step := every
			if nettest.Long() {
				step = 1
			}

			var all []triedSet
			for i := 0; i < len(sets); i += step {
				all = append(all, triedSet{namespaced: sets[i]})
			}
			all = append(all, clusterSets(t, first, sets)...)
			tried, ended, stayed := 0, 0, 0
			for _, set := range all {
				ends, stays := w.try(ctx, t, tried, set)
				tried, ended, stayed = tried+1, ended+ends, stayed+stays
			}
			t.Logf("%d sets of policies; of the connections %d ended, and %d stayed, as predicted",
				tried, ended, stayed)
			if tried < 10 || ended == 0 || stayed == 0 {
				t.Error("too little was tried")
			}
			if w.repeated > tried/10 {
				t.Errorf("nodes changed their rules during %d of %d tries", w.repeated, tried)
			}
			nodetest.NoLeaks(t, w.Lab)
		})
	}
}

// try tries a set of policies on connections between all pods, creates the policies, and compares.
// At the end it deletes them.
func (w *triedLab) try(ctx context.Context, t *testing.T, number int,
	set triedSet) (ends, stays int) {
	t.Helper()
	text, list, clusterwide := w.write(t, set)
	what := fmt.Sprintf("set %d %s", number, text)

	w.connect(ctx, t, triedPorts[number%len(triedPorts)])
	defer w.hangUp()
	predicted := w.tryUnchanged(ctx, t, what, text)
	if err := w.becomes(ctx, nil, nil); err != nil {
		t.Errorf("%s: after the try: %v", what, err)
	}

	// Policies come in force one after the other, and the first ones alone may end more.
	between, last := map[flowKey]bool{}, len(set.namespaced)
	if len(set.clusterwide) == 0 {
		last--
	}
	for i := 1; i <= last; i++ {
		part, _, _ := w.write(t, triedSet{namespaced: set.namespaced[:i]})
		maps.Copy(between, w.predict(ctx, t, part))
	}

	policies := w.Control.Client.NetworkingV1()
	for i := range list.Items {
		p := &list.Items[i]
		errtest.Must(t, errtest.Of(policies.NetworkPolicies(p.Namespace).Create(ctx, p,
			metav1.CreateOptions{})))
	}
	clusterPolicies := w.Control.Dynamic.Resource(nodetest.ClusterPolicies)
	for _, o := range clusterwide.Items {
		errtest.Must(t, errtest.Of(clusterPolicies.Create(ctx, &o, metav1.CreateOptions{})))
	}
	w.inForce(ctx, t)
	if err := w.becomes(ctx, predicted, between); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	w.retry(ctx, t, what)

	errtest.Must(t, clusterPolicies.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}))
	for _, n := range []string{"x", "y", "z"} {
		errtest.Must(t, policies.NetworkPolicies(n).DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{}))
	}
	w.inForce(ctx, t)
	return len(predicted), len(w.flows) - len(predicted)
}

// write returns a set as a file of policies, and its objects.
func (w *triedLab) write(t *testing.T, set triedSet) (text []byte,
	list networkingv1.NetworkPolicyList, clusterwide unstructured.UnstructuredList) {
	t.Helper()
	list = networkingv1.NetworkPolicyList{Items: set.namespaced, TypeMeta: metav1.TypeMeta{
		APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicyList"}}
	namespaced, err := json.Marshal(&list)
	errtest.Must(t, err)
	namespaced = []byte(w.blocks.Replace(string(namespaced)))
	list = networkingv1.NetworkPolicyList{}
	errtest.Must(t, json.Unmarshal(namespaced, &list))

	var items []string
	for _, name := range slices.Sorted(maps.Keys(set.clusterwide)) {
		items = append(items, fmt.Sprintf(`{"apiVersion": %q, "kind": "ClusterNetworkPolicy", `+
			`"metadata": {"name": %q}, "spec": %s}`, nodetest.ClusterPolicies.GroupVersion(), name,
			set.clusterwide[name]))
	}
	other := w.blocks.Replace(`{"apiVersion": "v1", "kind": "List", "items": [` +
		strings.Join(items, ",") + `]}`)
	errtest.Must(t, json.Unmarshal([]byte(other), &clusterwide))
	return fmt.Appendf(nil, "%s\n---\n%s", namespaced, other), list, clusterwide
}

// retry tries the policies in force as the API server lists them. Nothing would change.
func (w *triedLab) retry(ctx context.Context, t *testing.T, what string) {
	t.Helper()
	rest := w.Control.Client.NetworkingV1().RESTClient()
	list, err := rest.Get().AbsPath("/apis/networking.k8s.io/v1/networkpolicies").DoRaw(ctx)
	errtest.Must(t, err)
	other, err := rest.Get().AbsPath("/apis", nodetest.ClusterPolicies.Group,
		nodetest.ClusterPolicies.Version, nodetest.ClusterPolicies.Resource).DoRaw(ctx)
	errtest.Must(t, err)
	for _, n := range w.Nodes() {
		got := w.tryOn(ctx, t, n, fmt.Appendf(nil, "%s\n---\n%s", list, other))
		if len(got.Ends) > 0 || len(got.Passes) > 0 {
			t.Errorf("%s: %s predicts changes by the policies in force: %+v", what, n.Name, got)
		}
	}
}

// tryOn returns what veilctl policy try shows on a node.
func (w *triedLab) tryOn(ctx context.Context, t *testing.T, n *lab.Node,
	policies []byte) (answer known.Tried) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "new.yaml")
	filetest.Write(t, file, policies, 0o644)
	out, err := n.Exec(ctx, w.Program("veilctl"), "policy", "try", "-f", file, "-o", "json")
	if jsonErr := json.Unmarshal(out, &answer); jsonErr != nil {
		t.Fatalf("veilctl policy try: %s: %v", out, errors.Join(err, jsonErr))
	}
	return answer
}

// predict returns the flows that veilctl policy try names as ended, on all nodes.
func (w *triedLab) predict(ctx context.Context, t *testing.T,
	policies []byte) map[flowKey]bool {
	t.Helper()
	ends := map[flowKey]bool{}
	for _, n := range w.Nodes() {
		answer := w.tryOn(ctx, t, n, policies)
		if answer.Connections < w.knownAt(n) || answer.Unknown > 0 || len(answer.Passes) > 0 {
			t.Errorf("%s knows %d connections, want %d: %+v", n.Name, answer.Connections,
				w.knownAt(n), answer)
		}
		for _, r := range answer.Ends {
			key := flowKey{from: r.Peer, to: r.Pod, proto: r.Protocol, port: r.Port}
			if r.Direction == "egress" {
				key.from, key.to = r.Pod, r.Peer
			}
			if w.flows[key] == nil || r.Connections < 1 {
				t.Errorf("%s predicts the end of what was not opened: %+v", n.Name, r)
			}
			ends[key] = true
		}
	}
	return ends
}

// knownAt returns the number of flows of the pods of a node.
func (w *triedLab) knownAt(n *lab.Node) (count int) {
	for key := range w.flows {
		if w.pods[key.from].Node == n || w.pods[key.to].Node == n {
			count++
		}
	}
	return count
}

// tryUnchanged returns what a try predicts during which no node changed its rules. veild writes a
// table of its own every five minutes (package passage), so it tries again then.
func (w *triedLab) tryUnchanged(ctx context.Context, t *testing.T, what string,
	text []byte) (predicted map[flowKey]bool) {
	t.Helper()
	err := lab.Until(ctx, 40*time.Second, func() error {
		err := unchanged(w.Nodes(), func() { predicted = w.predict(ctx, t, text) })
		if err != nil {
			w.repeated++
		}
		return err
	})
	if err != nil {
		t.Errorf("%s: during each try: %v", what, err)
	}
	return predicted
}

// unchanged calls try, and returns an error if the rules of a node changed meanwhile. Each change of
// any table counts. Elements that packets add to sets, and the ends of their timeouts, do not.
func unchanged(nodes []*lab.Node, try func()) error {
	if len(nodes) == 0 {
		try()
		return nil
	}
	var c *nft.Conn
	if err := nodes[0].Do(func() (err error) { c, err = nft.Open(); return err }); err != nil {
		return err
	}
	defer c.Close()
	quiet, err := c.Quiet(func() error { return unchanged(nodes[1:], try) })
	if err == nil && !quiet {
		err = fmt.Errorf("rules of %s changed", nodes[0].Name)
	}
	return err
}

// inForce waits until all nodes enforce the policies of the API server.
func (w *triedLab) inForce(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes() {
		nodetest.Run(ctx, t, n, w.Program("veilctl"), "policy", "wait", "--timeout", "1m")
	}
}
