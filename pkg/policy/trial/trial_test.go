package trial_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
)

// judged holds the oracle's decisions about a connection before and after the change.
type judged struct{ before, after bool }

// clone returns a copy of a World that can be changed.
func clone(w *policytest.World) *policytest.World {
	c := *w
	c.Policies, c.Cluster = maps.Clone(w.Policies), maps.Clone(w.Cluster)
	c.Namespaces, c.Pods = maps.Clone(w.Namespaces), maps.Clone(w.Pods)
	c.Attached, c.Nodes = maps.Clone(w.Attached), maps.Clone(w.Nodes)
	return &c
}

// attached returns the addresses of the plan's pods.
func attached(p *policy.Plan) map[netip.Addr]bool {
	addrs := map[netip.Addr]bool{}
	for _, m := range p.Members {
		for _, a := range m.Addrs {
			addrs[a] = true
		}
	}
	return addrs
}

// putPolicies passes the change from the policies of one World to those of another to p.
func putPolicies(from, to *policytest.World, p *planner.Planner) {
	for name := range from.Policies {
		if _, has := to.Policies[name]; !has {
			p.DeletePolicy(name)
		}
	}
	for name := range from.Cluster {
		if _, has := to.Cluster[name]; !has {
			p.DeleteClusterPolicy(name)
		}
	}
	for _, v := range to.Policies {
		p.PutPolicy(v)
	}
	for _, v := range to.Cluster {
		p.PutClusterPolicy(v)
	}
}

// For each connection, a Trial predicts the decisions of the oracle before and after the change.
func TestTrialPredictsWhatTheOracleDecides(t *testing.T) {
	flows := policytest.Flows()
	rapid.Check(t, func(t *rapid.T) {
		now := policytest.DrawWorld(t)
		p := now.NewPlanner()
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			now.Change(t, p)
		}
		other := clone(now)
		for range rapid.IntRange(1, 10).Draw(t, "changes to try") {
			// Only the changes of policies are tried.
			other.Change(t, planner.New("here"))
		}
		next := clone(now)
		next.Policies, next.Cluster = other.Policies, other.Cluster

		q := p.Copy()
		before := q.Plan()
		putPolicies(now, next, q)
		after := q.Plan()
		pods, podsAfter := attached(before), attached(after)

		for _, f := range flows {
			f.FromPod, f.ToPod = pods[f.Src], pods[f.Dst]
			if f.Midstream || f.ToNode || !f.FromPod && !f.ToPod ||
				podsAfter[f.Src] != f.FromPod || podsAfter[f.Dst] != f.ToPod {
				continue
			}
			tr := trial.New(trial.Config{Before: before, After: after,
				Name: func(a netip.Addr) trial.End { return trial.End{Name: a.String()} }})
			tr.Known(policy.Known{Client: f.Src, Server: f.Dst, Proto: f.Proto, Port: f.Port})
			got := tr.Result()

			want := judged{now.Judge(f) == policy.Allow, next.Judge(f) == policy.Allow}
			is := judged{got.Same+len(got.Ends) == 1, got.Same+len(got.Passes) == 1}
			if got.Connections != 1 || is != want {
				t.Fatalf("%+v: predicted %+v, the oracle decides %+v", f, got, want)
			}
			if len(got.Ends) == 1 && got.Ends[0].Reason != next.Judge(f).String() {
				t.Fatalf("%+v: reason %s, the oracle's is %s", f, got.Ends[0].Reason, next.Judge(f))
			}
		}
	})
}

var deny = policy.Policy{Name: policy.Name{Namespace: "shop", Name: "deny"},
	Isolates: [2]bool{true, true}, Subjects: policy.Selector{{Key: "app", Values: []string{"web"}}}}

// shop returns a planner with a pod web at the pool's first addresses and a pod without labels.
func shop() *planner.Planner {
	p := planner.New("here")
	p.PutNamespace(policy.Namespace{Name: "shop"})
	for i, name := range []string{"web", "other"} {
		pod := policy.Pod{Name: policy.Name{Namespace: "shop", Name: name}, UID: name, Node: "here",
			Labels: map[string]string{"app": name}}
		p.PutPod(pod)
		p.SetAttached(pod.Key(), policytest.PodAddrs(i+1))
	}
	return p
}

// try returns a Trial of deny in shop.
func try() *trial.Trial {
	p := shop()
	before := p.Plan()
	p.PutPolicy(deny)
	return trial.New(trial.Config{Before: before, After: p.Plan(),
		Name: func(a netip.Addr) trial.End { return trial.End{Name: a.String()} },
		Denying: func(_ *policy.Plan, d policy.Direction, f policy.Flow) ([]string, int) {
			return []string{fmt.Sprint(d, " by deny")}, 0
		}})
}

func known(client, server netip.Addr, port uint16) policy.Known {
	return policy.Known{Client: client, Server: server, Proto: policy.TCP, Port: port,
		ClientPort: 40000}
}

func TestRowsCountConnectionsOfAPodWithAPeer(t *testing.T) {
	web, other := policytest.PodAddrs(1)[0], policytest.PodAddrs(2)[0]
	outside := policytest.Outside[0]
	tr := try()
	for range 3 {
		tr.Known(known(other, web, 80))
	}
	tr.Known(known(web, outside, 443))
	tr.Known(known(other, outside, 443))
	tr.Known(known(outside, outside, 443))
	midstream := known(other, web, 80)
	midstream.Midstream = true
	tr.Known(midstream)

	want := trial.Result{Connections: 6, Same: 1, Passes: []trial.Row{}, Ends: []trial.Row{
		{Pod: web.String(), Direction: "ingress", Peer: other.String(), Protocol: "tcp", Port: 80,
			Connections: 4, Reason: "policy_ingress", Policies: []string{"ingress by deny"}},
		{Pod: web.String(), Direction: "egress", Peer: outside.String(), Protocol: "tcp",
			Port: 443, Connections: 1, Reason: "policy_egress",
			Policies: []string{"egress by deny"}}}}
	if diff := cmp.Diff(want, tr.Result()); diff != "" {
		t.Error(diff)
	}
}

// A pod that scans fills only its own rows.
func TestRowsOfAPodAreBounded(t *testing.T) {
	web, other := policytest.PodAddrs(1)[0], policytest.PodAddrs(2)[0]
	tr := try()
	for port := range uint16(1000) {
		tr.Known(known(web, policytest.Outside[0], port+1))
	}
	tr.Known(known(other, web, 80))
	rows := tr.Result().Ends
	if len(rows) != trial.MaxRows+1 {
		t.Fatalf("%d rows, want %d", len(rows), trial.MaxRows+1)
	}
	sum := 0
	for _, r := range rows {
		sum += r.Connections
	}
	if first := rows[0]; first.Peer != trial.Others || first.Connections < 1001-trial.MaxRows ||
		sum != 1001 {
		t.Errorf("%d connections, first row %+v", sum, first)
	}
}

// A pod with many long names of policies leaves room for other pods.
func TestNamesOfPoliciesInRowsAreBounded(t *testing.T) {
	web := policytest.PodAddrs(1)[0]
	p := shop()
	before := p.Plan()
	p.PutPolicy(deny)
	long := strings.Repeat("n", 317)
	tr := trial.New(trial.Config{Before: before, After: p.Plan(),
		Name: func(a netip.Addr) trial.End { return trial.End{Name: a.String()} },
		Denying: func(*policy.Plan, policy.Direction, policy.Flow) ([]string, int) {
			return slices.Repeat([]string{long}, 8), 2
		}})
	for port := range uint16(trial.MaxRows) {
		tr.Known(known(web, policytest.Outside[0], port+1))
	}
	bytes := 0
	for _, r := range tr.Result().Ends {
		if len(r.Policies)+r.MorePolicies != 10 {
			t.Fatalf("%d policies and %d more, want 10", len(r.Policies), r.MorePolicies)
		}
		bytes += len(r.Policies) * len(long)
	}
	if bytes == 0 || bytes > 8<<10 {
		t.Errorf("the names have %d bytes", bytes)
	}
}

// A drop that policies allow by now does not count for the policies to try.
func TestDropsPassOrStayDenied(t *testing.T) {
	p := shop()
	p.PutPolicy(deny)
	before := p.Plan()
	open := deny
	open.Rules[policy.Ingress] = []policy.Rule{{}}
	p.PutPolicy(open)
	tr := trial.New(trial.Config{Before: before, After: p.Plan(),
		Name: func(a netip.Addr) trial.End { return trial.End{Name: a.String()} }})
	web, other := policytest.PodAddrs(1)[0], policytest.PodAddrs(2)[0]
	tr.Dropped(policy.Flow{Src: other, Dst: web, FromPod: true, ToPod: true, Proto: policy.TCP,
		Port: 80})
	tr.Dropped(policy.Flow{Src: web, Dst: other, FromPod: true, ToPod: true, Proto: policy.TCP,
		Port: 80})
	tr.Dropped(policy.Flow{Src: policytest.Outside[0], Dst: other, ToPod: true, Proto: policy.TCP,
		Port: 80})
	r := tr.Result()
	if r.Drops != 2 || r.DropsDenied != 1 || len(r.Passes) != 1 || r.Passes[0].Drops != 1 ||
		r.Passes[0].Pod != web.String() {
		t.Errorf("result of drops: %+v", r)
	}
}
