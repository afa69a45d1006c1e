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

// Lane is a node of its own with two pods, all in namespaces of their own:
//
//	client ── node: guard, routing, NAT, and what judges ── server
//
// Nothing that is in force in one lane costs another anything.
type Lane struct {
	Name                 string
	Host, Client, Server *world.Space
	// listeners are the server's sockets, on portServed and portDenied.
	listeners [2]int
	// Rules is the number of rules that select the server, lines the number of rules that the plan
	// makes of them.
	Rules, Lines int
	// Queue judges in place of our table; nil in other lanes.
	Queue *nfqueue.Queue
	undo  pod.Undo
}

// Ports of the server. Where a policy is in force, the second one is denied.
const portServed, portDenied = 9010, 9011

// Pods of a lane, by their numbers.
const clientPod, serverPod = 0, 1

// ranges have the addresses of all pods.
var ranges = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16"),
	netip.MustParsePrefix("fd42::/24")}

// Judge puts the filter of a lane into force, in the node's namespace. It is called before the pods
// are attached. Nil means that the lane has no filter.
type Judge func(l *Lane, paths pod.Paths) error

// New makes a lane. Guard programs are pinned in a folder of pins. The lane must be closed also
// after an error.
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

// Close takes everything away.
func (l *Lane) Close() error { return l.undo.Run() }

// node puts into force what veild has on a node, but for tunnels, in the calling thread's
// namespace: without it no packet would be tracked, and policies alone would pay for that.
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

// attach attaches both pods as the CNI plugin does.
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

// judgePolicies returns a judge that enforces the policies by Kubeveil's table. rules is the number
// of their rules.
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

// planOf plans policies on the node of a lane. The peers that they name are pods of another node,
// one in each set.
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

// linesOfServer returns how many lines the plan has for what the server receives.
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

// clientOf is the client with labels beside those that all pods have. No tier of a rule is its.
func clientOf(labels ...string) policy.Pod {
	p := world.PodOf(0, clientPod, world.Tiers)
	delete(p.Labels, "tier")
	for _, l := range labels {
		p.Labels[l] = "client"
	}
	return p
}

// serverPolicy returns policy j for the server, with these rules.
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

// allow is a rule for the pods of all namespaces with a label, on the port that is measured.
func allow(key, value string) policy.Rule {
	return policy.Rule{
		Peers: []policy.Peer{{Namespaces: &policy.Selector{},
			Pods: &policy.Selector{{Key: key, Values: []string{value}}}}},
		Ports: []policy.Port{{Proto: policy.TCP, First: portServed, Last: portServed}},
	}
}

// TenByTen are ten policies of ten rules for the server. Each has one rule that allows the client.
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

// Others is the number of rules that do not match in the lane "many".
const Others = world.Tiers

// AfterOthers are rules of which all but one do not match.
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
