// Cyclonus writes all test cases of cyclonus' generator of NetworkPolicies to standard output, as
// one document of JSON. Each step of a case has the objects of the cluster, and the verdicts of
// cyclonus' matcher for every ordered pair of pods, port and protocol.
//
// The cluster is the standard one of cyclonus: the pods a, b and c in each of the namespaces x, y
// and z, each serving TCP, UDP and SCTP on the ports 80 and 81. Flag -6 gives pods IPv6 addresses.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Document is the output.
type Document struct {
	// Ports and Protocols are the ports and protocols of the verdicts.
	Ports     []int
	Protocols []v1.Protocol
	Cases     []Case
}

// Case is a test case.
type Case struct {
	Description string
	Tags        []string
	Steps       []Step
}

// Step is the cluster after a step of a case.
type Step struct {
	Namespaces []v1.Namespace
	Pods       []*v1.Pod
	Policies   []*networkingv1.NetworkPolicy
	// Verdicts has a letter for each source, destination, port and protocol, the last one fastest:
	// allowed (.), denied by egress (e), by ingress (i), or by both (b).
	Verdicts string
}

// served are the ports that each pod serves. ports are the ports of the verdicts: the served ones,
// ports that only policies name, and one that nothing names.
var (
	namespaces = []string{"x", "y", "z"}
	podNames   = []string{"a", "b", "c"}
	served     = []int{80, 81}
	ports      = []int{53, 80, 81, 82, 7981}
	protocols  = []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}
)

// ranges are the first addresses of the pods of x, y and z, and of pods made later. The generator
// makes an ipBlock from the address of z/c: the block is its /24 (IPv6: /120), and the exception
// its /28 (/124). So x is outside the block, y is in the block and not in the exception, and z is
// in the exception.
var ranges = map[bool][4]string{
	false: {"198.18.1.1", "198.18.2.17", "198.18.2.129", "198.18.2.33"},
	true:  {"fd00:18::101", "fd00:18::211", "fd00:18::281", "fd00:18::221"},
}

func main() {
	v6 := flag.Bool("6", false, "give pods IPv6 addresses")
	flag.Parse()

	d, err := document(*v6)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(d)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func document(v6 bool) (*Document, error) {
	first, err := newWorld(v6)
	if err != nil {
		return nil, err
	}
	last, err := first.Resources.GetPod("z", "c")
	if err != nil {
		return nil, err
	}

	d := &Document{Ports: ports, Protocols: protocols}
	all := generator.NewTestCaseGenerator(true, last.IP, namespaces, nil, nil)
	for _, tc := range all.GenerateTestCases() {
		c := Case{Description: tc.Description, Tags: tc.Tags.Keys()}
		w, err := newWorld(v6)
		if err != nil {
			return nil, err
		}
		for i, s := range tc.Steps {
			step, err := w.step(s)
			if err != nil {
				return nil, fmt.Errorf("case %q, step %d: %w", tc.Description, i+1, err)
			}
			c.Steps = append(c.Steps, *step)
		}
		d.Cases = append(d.Cases, c)
	}
	return d, nil
}

// world is the state of a case, as cyclonus keeps it beside a cluster.
type world struct {
	connectivity.TestCaseState
	v6 bool
	// next holds the next address of each range.
	next [4]netip.Addr
}

func newWorld(v6 bool) (*world, error) {
	w := &world{v6: v6}
	for i, text := range ranges[v6] {
		w.next[i] = netip.MustParseAddr(text)
	}
	mock := kube.NewMockKubernetes(1)
	resources, err := probe.NewDefaultResources(mock, namespaces, podNames, served, protocols, nil, 1,
		false, "none")
	if err != nil {
		return nil, err
	}
	w.Kubernetes, w.Resources = mock, resources
	w.complete()
	return w, nil
}

// complete sets the addresses of pods, and adds the label of namespaces that an API server adds.
func (w *world) complete() {
	for _, p := range w.Resources.Pods {
		if have, err := netip.ParseAddr(p.IP); err == nil && w.inRanges(have) {
			continue
		}
		r := slices.Index(namespaces, p.Namespace)
		if r < 0 || !slices.Contains(podNames, p.Name) {
			r = len(w.next) - 1
		}
		p.IP = w.next[r].String()
		w.next[r] = w.next[r].Next()
	}
	for name, labels := range w.Resources.Namespaces {
		labels = maps.Clone(labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[kube.DefaultNamespaceLabel] = name
		w.Resources.Namespaces[name] = labels
	}
}

// inRanges reports whether an address is one that complete gave, not one of the mock's.
func (w *world) inRanges(a netip.Addr) bool {
	pods := netip.MustParsePrefix("198.18.0.0/16")
	if w.v6 {
		pods = netip.MustParsePrefix("fd00:18::/64")
	}
	return pods.Contains(a)
}

// step does the actions of a step and calls the matcher.
func (w *world) step(s *generator.TestStep) (*Step, error) {
	for _, a := range s.Actions {
		if err := w.act(a); err != nil {
			return nil, err
		}
		w.complete()
	}

	out := &Step{Policies: slices.Clone(w.Policies)}
	for _, name := range slices.Sorted(maps.Keys(w.Resources.Namespaces)) {
		out.Namespaces = append(out.Namespaces,
			*probe.KubeNamespace(name, w.Resources.Namespaces[name]))
	}
	for _, p := range w.Resources.Pods {
		pod := p.KubePod()
		pod.Status.PodIP, pod.Status.PodIPs = p.IP, []v1.PodIP{{IP: p.IP}}
		pod.Status.Phase = v1.PodRunning
		out.Pods = append(out.Pods, pod)
	}

	// Cyclonus simplifies policies before it judges. The policies as written must give the same
	// verdicts.
	out.Verdicts = w.verdicts(matcher.BuildNetworkPolicies(true, w.Policies))
	if plain := w.verdicts(matcher.BuildNetworkPolicies(false, w.Policies)); plain != out.Verdicts {
		return nil, fmt.Errorf("cyclonus contradicts itself: simplified policies say %s, those as "+
			"written %s", out.Verdicts, plain)
	}
	return out, nil
}

func (w *world) act(a *generator.Action) error {
	switch {
	case a.CreatePolicy != nil:
		return w.CreatePolicy(a.CreatePolicy.Policy)
	case a.UpdatePolicy != nil:
		return w.UpdatePolicy(a.UpdatePolicy.Policy)
	case a.DeletePolicy != nil:
		return w.DeletePolicy(a.DeletePolicy.Namespace, a.DeletePolicy.Name)
	case a.CreateNamespace != nil:
		return w.CreateNamespace(a.CreateNamespace.Namespace, a.CreateNamespace.Labels)
	case a.SetNamespaceLabels != nil:
		return w.SetNamespaceLabels(a.SetNamespaceLabels.Namespace, a.SetNamespaceLabels.Labels)
	case a.DeleteNamespace != nil:
		return w.DeleteNamespace(a.DeleteNamespace.Namespace)
	case a.CreatePod != nil:
		return w.CreatePod(a.CreatePod.Namespace, a.CreatePod.Pod, a.CreatePod.Labels)
	case a.SetPodLabels != nil:
		return w.SetPodLabels(a.SetPodLabels.Namespace, a.SetPodLabels.Pod, a.SetPodLabels.Labels)
	case a.DeletePod != nil:
		return w.DeletePod(a.DeletePod.Namespace, a.DeletePod.Pod)
	}
	return fmt.Errorf("an action of a kind that this program does not know: %+v", a)
}

// verdicts returns the matcher's verdicts on all flows; see Step.
func (w *world) verdicts(policies *matcher.Policy) string {
	var out strings.Builder
	for _, from := range w.Resources.Pods {
		for _, to := range w.Resources.Pods {
			for _, port := range ports {
				for _, proto := range protocols {
					out.WriteByte(verdict(policies.IsTrafficAllowed(&matcher.Traffic{
						Source: w.peer(from), Destination: w.peer(to), Protocol: proto,
						ResolvedPort: port, ResolvedPortName: portName(to, port, proto)})))
				}
			}
		}
	}
	return out.String()
}

func (w *world) peer(p *probe.Pod) *matcher.TrafficPeer {
	return &matcher.TrafficPeer{IP: p.IP, Internal: &matcher.InternalPeer{PodLabels: p.Labels,
		Namespace: p.Namespace, NamespaceLabels: w.Resources.Namespaces[p.Namespace]}}
}

// portName returns the name of a port of a pod, or "" if it has none.
func portName(p *probe.Pod, port int, proto v1.Protocol) string {
	for _, c := range p.Containers {
		if c.Port == port && c.Protocol == proto {
			return c.PortName
		}
	}
	return ""
}

func verdict(r *matcher.AllowedResult) byte {
	switch egress, ingress := r.Egress.IsAllowed(), r.Ingress.IsAllowed(); {
	case egress && ingress:
		return '.'
	case ingress:
		return 'e'
	case egress:
		return 'i'
	}
	return 'b'
}
