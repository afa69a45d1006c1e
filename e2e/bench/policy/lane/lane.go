package lane

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/kubeveil/kubeveil/e2e/bench/bare"
	"github.com/kubeveil/kubeveil/e2e/bench/bpffs"
	"github.com/kubeveil/kubeveil/e2e/bench/nfqueue"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// Lane is a node with two pods, each in its own namespace:
//
//	client ── node: guard, routing, NAT, and the filter ── server
//
// The rules of one lane cost the other lanes nothing.
type Lane struct {
	Name                 string
	Host, Client, Server *world.Space
	// listeners are the server's sockets on portServed and portDenied.
	listeners [2]int
	// Rules is the number of policy rules that select the server. Lines is the number of lines to
	// which the plan joins them. Both are 0 in lanes without policies.
	Rules, Lines int
	// Queue accepts packets in place of Kubeveil's table of policies; nil in other lanes.
	Queue *nfqueue.Queue
	undo  pod.Undo
}

// Ports of the server. Policies allow the first and deny the second.
const portServed, portDenied = 9010, 9011

// Numbers of a lane's pods.
const clientPod, serverPod = 0, 1

// ranges are the address ranges of all pods.
var ranges = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16"),
	netip.MustParsePrefix("fd42::/24")}

// Judge installs the filter of a lane. New calls it in the node's namespace before it attaches the
// pods. A nil Judge means that the lane has no filter.
type Judge func(l *Lane, paths pod.Paths) error

// New makes a lane. Its files are in a folder of dir, and the guard's programs are pinned in a
// folder of pins. The caller must close the lane also after an error.
func New(name string, dir string, pins *bpffs.FS, j Judge) (*Lane, error) {
	l := &Lane{Name: name, listeners: [2]int{-1, -1}}
	for _, s := range []**world.Space{&l.Host, &l.Client, &l.Server} {
		made, err := world.NewSpace()
		if err != nil {
			return l, err
		}
		*s = made
		l.undo.Add(made.Close)
	}

	dir = filepath.Join(dir, name)
	paths := pod.Paths{PodDir: filepath.Join(dir, "pods"), ReadyFile: filepath.Join(dir, "ready"),
		PolicyDir: filepath.Join(dir, "policy")}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = l.Host.Do(func() error { return l.node(paths, pins.Dir(name), j) })
	}
	if err == nil {
		err = l.attach(paths)
	}
	if err == nil {
		err = l.Server.Do(l.listen)
	}
	if err == nil {
		err = l.prove()
	}
	if err != nil {
		return l, fmt.Errorf("lane %s: %w", name, err)
	}
	return l, nil
}

// Close removes everything that New made.
func (l *Lane) Close() error { return l.undo.Run() }

// node installs everything that veild installs on a node except tunnels, in the calling thread's
// namespace, and calls j. Without this, only lanes with policies would track connections, and the
// cost of tracking would count as a cost of policies.
func (l *Lane) node(paths pod.Paths, pins string, j Judge) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}

	release, err := bare.GuardedNode{Pods: ranges, Pins: pins}.Apply()
	if err != nil {
		return err
	}
	l.undo.Add(release)
	if err := podtest.Mark(paths.ReadyFile, ranges...); err != nil || j == nil {
		return err
	}
	return j(l, paths)
}

// attach attaches both pods to the node as the CNI plugin does.
func (l *Lane) attach(paths pod.Paths) error {
	for i, s := range []*world.Space{l.Client, l.Server} {
		r := world.RecordOf(world.PodOf(0, i, 0), i)
		r.Netns = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.Fd())
		var undo pod.Undo
		err := l.Host.Do(func() error { return paths.Attach(r, s.Fd(), &undo) })
		l.undo.Add(func() error { return l.Host.Do(undo.Run) })
		if err != nil {
			return err
		}
	}
	return nil
}

// judgePolicies returns a Judge that enforces policies by Kubeveil's table. rules is the number of
// their rules.
func judgePolicies(client policy.Pod, policies []policy.Policy, rules int) Judge {
	return func(l *Lane, paths pod.Paths) error {
		plan, err := planOf(client, policies)
		if err != nil {
			return err
		}
		l.Rules = rules
		if l.Lines = linesOfServer(plan); l.Lines == 0 {
			return errors.New("the plan has no line for the server")
		}

		var t nftables.PolicyTable
		defer func() { _ = t.Close() }()
		if _, err := t.Apply(plan); err != nil {
			return err
		}
		groups := map[pod.Workload]string{}
		for key, m := range plan.Members {
			groups[pod.Workload{Namespace: key.Namespace, Name: key.Name.Name, UID: key.UID}] = m.Group
		}
		return errors.Join(paths.OpenPolicy(), paths.Reserve(groups))
	}
}

// planOf returns the plan of policies for the node of a lane. Their sets of peers have one pod of
// another node each.
func planOf(client policy.Pod, policies []policy.Policy) (*policy.Plan, error) {
	p := planner.New(world.Here)
	for i := range world.Namespaces {
		p.PutNamespace(policy.Namespace{Name: world.NamespaceName(i)})
	}
	for i := range world.Tiers {
		p.PutPod(world.PodOf(1, i, i))
	}
	p.PutPod(client)
	p.PutPod(world.PodOf(0, serverPod, world.Tiers-1))
	for _, one := range policies {
		p.PutPolicy(one)
	}
	plan := p.Plan()
	if len(plan.Problems) > 0 || len(plan.Members) != 2 {
		return nil, fmt.Errorf("the plan has %d pods of the node and problems %v, want 2 and none",
			len(plan.Members), plan.Problems)
	}
	return plan, nil
}

// linesOfServer returns the number of lines that the plan has for packets to the server.
func linesOfServer(plan *policy.Plan) int {
	server := plan.Members[world.KeyOf(world.PodOf(0, serverPod, 0))]
	if server == nil || plan.Groups[server.Group] == nil {
		return 0
	}
	chain := plan.Chains[plan.Groups[server.Group].Chains[policy.Ingress]]
	if chain == nil {
		return 0
	}
	return len(chain.Lines)
}

// clientOf returns the client with additional labels, each with the value "client". It has no label
// "tier", so no rule that names a tier matches it.
func clientOf(labels ...string) policy.Pod {
	p := world.PodOf(0, clientPod, world.Tiers)
	delete(p.Labels, "tier")
	for _, l := range labels {
		p.Labels[l] = "client"
	}
	return p
}

// serverPolicy returns policy j, which selects the server, with rules for ingress.
func serverPolicy(j int, rules ...policy.Rule) policy.Policy {
	server := world.PodOf(0, serverPod, 0)
	p := policy.Policy{
		Name:     policy.Name{Namespace: server.Namespace, Name: fmt.Sprintf("server-%d", j)},
		Subjects: policy.Selector{{Key: "app", Values: []string{server.Labels["app"]}}},
		Isolates: [2]bool{true, false},
	}
	p.Rules[policy.Ingress] = rules
	return p
}

// allow returns a rule that allows pods of all namespaces with a label to connect to portServed.
func allow(key, value string) policy.Rule {
	return policy.Rule{
		Peers: []policy.Peer{{Namespaces: &policy.Selector{},
			Pods: &policy.Selector{{Key: key, Values: []string{value}}}}},
		Ports: []policy.Port{{Proto: policy.TCP, First: portServed, Last: portServed}},
	}
}

// TenByTen returns a Judge for ten policies with ten rules each. One rule of each policy allows the
// client.
func TenByTen() Judge {
	var policies []policy.Policy
	var roles []string
	for j := range 10 {
		var rules []policy.Rule
		for r := range 9 {
			rules = append(rules, allow("tier", world.TierName(j*9+r)))
		}
		roles = append(roles, fmt.Sprintf("role-%d", j))
		policies = append(policies, serverPolicy(j, append(rules, allow(roles[j], "client"))...))
	}
	return judgePolicies(clientOf(roles...), policies, 100)
}

// Others is the number of rules of AfterOthers that do not match the client.
const Others = world.Tiers

// AfterOthers returns a Judge for policies with Others rules that do not match the client, and one
// that does.
func AfterOthers() Judge {
	var policies []policy.Policy
	for j := range Others / 10 {
		var rules []policy.Rule
		for r := range 10 {
			rules = append(rules, allow("tier", world.TierName(j*10+r)))
		}
		policies = append(policies, serverPolicy(j, rules...))
	}
	policies = append(policies, serverPolicy(Others, allow("role", "client")))
	return judgePolicies(clientOf("role"), policies, Others+1)
}
