package agent

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
)

// A node that publishes this node's key, before this node does or after this node's VeilNode was
// deleted, is refused. As a peer, it would make every configuration of the device fail.
func TestOwnKeyIsThisNodesAlone(t *testing.T) {
	in := plantest.Two(t)
	own := in.Key.Public()
	thief := plantest.Peer("b", 1500, 2, addrs("198.18.0.12"), prefixes("198.19.2.0/24"))
	thief.Claim.Keys[0].Public = own
	state := withOwnKey(cluster.State{Synced: true, Nodes: []cluster.Node{thief, *in.Table.Self}},
		"a", own)
	table, refusals := cluster.Resolve(in.Config.Rules(nil), state, nil)
	if len(table.Peers) != 0 || len(refusals) != 1 || refusals[0].Node != "b" {
		t.Errorf("peers %v, refusals %v", table.Peers, refusals)
	}
}

// If veild was killed between an apply and the snapshot, only the guard's map has the address of a
// new node. The address stays closed.
func TestNodeOfTheGuardAloneStaysClosed(t *testing.T) {
	in := plantest.Two(t)
	in.Table.NodeAddrs = union(in.Table.NodeAddrs, addrs("198.18.0.13", "198.18.0.12"))
	want := addrs("198.18.0.11", "198.18.0.12", "198.18.0.13", "fd42::b", "fd42::c")
	d := plan.Decide(in)
	if !slices.Equal(d.Guard.NodeAddrs, want) || !slices.Equal(d.Host.NodeAddrs, want) {
		t.Errorf("closed for %v and %v, want %v", d.Guard.NodeAddrs, d.Host.NodeAddrs, want)
	}
	unreachable := slices.ContainsFunc(hostnet.Plan(d.Host).Routes, func(r rtnetlink.Route) bool {
		return r.Table == abi.TablePod && r.Device == "" &&
			r.Dst == netip.MustParsePrefix("198.18.0.13/32")
	})
	if !unreachable {
		t.Error("its address is not unreachable for pods")
	}
}
