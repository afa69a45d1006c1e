package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

const (
	caseRevokeFew   = "revoke_few"
	caseRevokeAll   = "revoke_all"
	suffixBehind    = "_behind_another"
	portFew         = 9010
	portRest        = 9009
	entryTimeout    = 3600 // seconds
	conntrackMax    = "/proc/sys/net/netfilter/nf_conntrack_max"
	conntrackCount  = "/proc/sys/net/netfilter/nf_conntrack_count"
	connectionShare = 100 // one of this many connections has portFew
	// quiet is longer than the pause of a Keeper between two revocations.
	quiet = 600 * time.Millisecond
)

// portOf returns the port of the server of connection k.
func portOf(k int) uint16 {
	if k%connectionShare == 0 {
		return portFew
	}
	return portRest
}

// access returns a policy that isolates all pods of team-0 and allows connections to ports. With
// portFew and portRest it allows all connections of the part.
func access(ports ...uint16) policy.Policy {
	p := policy.Policy{Name: policy.Name{Namespace: world.NamespaceName(0), Name: "access"},
		Isolates: [2]bool{true, false}}
	for _, port := range ports {
		p.Rules[policy.Ingress] = append(p.Rules[policy.Ingress],
			policy.Rule{Ports: []policy.Port{{Proto: policy.TCP, First: port, Last: port}}})
	}
	return p
}

// revoke measures the time from a policy that allows less until conntrack has lost the last
// connection that it denies.
func (s *run) revoke(ctx context.Context) (err error) {
	if err := room(s.scales.connections); err != nil {
		return err
	}
	n, err := newNode(world.Cluster{Scale: s.scales.node})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	n.Put(n, n.Nodes)
	n.PutPolicy(access(portFew, portRest))
	if err := n.listed(ctx); err != nil {
		return err
	}

	v := suite.Values{}
	for round := range s.Rounds {
		for _, behind := range []string{"", suffixBehind} {
			if err := s.revokeRound(ctx, n, behind, v); err != nil {
				return err
			}
		}
		s.Progress("round %d  of %d connections 1 %%: %.0f ms, behind another %.0f ms; all others: "+
			"%.0f ms, behind another %.0f ms", round+1, s.scales.connections, v.Last(caseRevokeFew),
			v.Last(caseRevokeFew+suffixBehind), v.Last(caseRevokeAll), v.Last(caseRevokeAll+suffixBehind))
	}
	s.addAll(v, bench.Millisecond, caseRevokeFew, caseRevokeFew+suffixBehind, caseRevokeAll,
		caseRevokeAll+suffixBehind)
	return nil
}

// room returns an error unless the kernel's limit allows n tracked connections and a tenth more.
func room(n int) error {
	b, err := os.ReadFile(conntrackMax)
	if err != nil {
		return fmt.Errorf("read the limit of tracked connections: %w", err)
	}
	if most, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || most < n+n/10 {
		return fmt.Errorf("the kernel tracks %d connections, want %d: raise %s", most, n+n/10,
			conntrackMax)
	}
	return nil
}

// revokeRound revokes the connections to one port, and then the connections to the other. With
// behind, each revocation directly follows another one, for which the Keeper pauses.
func (s *run) revokeRound(ctx context.Context, n *node, behind string, v suite.Values) error {
	count := s.scales.connections
	if err := n.Do(func() error { return n.connect(ctx, count) }); err != nil {
		return err
	}
	few := (count + connectionShare - 1) / connectionShare
	for _, step := range []struct {
		name          string
		revoked, left int
		access        policy.Policy
	}{
		{caseRevokeFew, few, count - few, access(portRest)},
		{caseRevokeAll, count - few, 0, access()},
	} {
		took, err := n.revoked(ctx, step.access, step.revoked, behind != "")
		if err != nil {
			return err
		}
		v.Add(step.name+behind, bench.Millis(took))
		if err := n.tracks(step.left); err != nil {
			return err
		}
	}
	_, err := n.change(ctx, func() { n.PutPolicy(access(portFew, portRest)) })
	return err
}

// revoked puts policy p and returns the time until want connections were revoked. With behind,
// another revocation has just begun.
func (n *node) revoked(ctx context.Context, p policy.Policy, want int,
	behind bool) (time.Duration, error) {
	if err := poll.Pause(ctx, quiet); err != nil {
		return 0, err
	}
	if behind {
		n.moves++
		node, i := n.OtherPod(n.moves)
		pod := world.PodOf(node, i, world.TierOf(node, i)+n.moves)
		if _, err := n.change(ctx, func() { n.PutPod(pod) }); err != nil {
			return 0, err
		}
	}

	before := n.Status().Revoked
	began := time.Now()
	if _, err := n.change(ctx, func() { n.PutPolicy(p) }); err != nil {
		return 0, err
	}
	err := await(ctx, time.Millisecond, func() error {
		if got := n.Status().Revoked - before; got < uint64(want) {
			return fmt.Errorf("%d of %d connections were revoked in %v", got, want, changeLimit)
		}
		return nil
	})
	return time.Since(began), err
}

// tracks returns an error unless the node tracks exactly want connections.
func (n *node) tracks(want int) error {
	return n.Do(func() error {
		b, err := os.ReadFile(conntrackCount)
		if err != nil {
			return err
		}
		if got := strings.TrimSpace(string(b)); got != strconv.Itoa(want) {
			return fmt.Errorf("%s connections are tracked, want %d", got, want)
		}
		return nil
	})
}

// connect adds tracked connections from pods of other nodes to the pods of team-0 on this node.
func (n *node) connect(ctx context.Context, count int) error {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	for k := range count {
		if k%1000 == 0 {
			if err := context.Cause(ctx); err != nil {
				return err
			}
		}
		if err := h.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, n.flow(k)); err != nil {
			return fmt.Errorf("add tracked connection %d: %w", k, err)
		}
	}
	return nil
}

// flow returns the conntrack entry of connection k.
func (n *node) flow(k int) *netlink.ConntrackFlow {
	from, i := n.OtherPod(k)
	client, server := world.Addrs(from, i)[0].AsSlice(), world.Addrs(0, 0)[0].AsSlice()
	clientPort, serverPort := uint16(20000+k/(n.Pods*(n.Nodes-1))), portOf(k)
	return &netlink.ConntrackFlow{
		FamilyType: unix.AF_INET,
		Forward: netlink.IPTuple{Protocol: unix.IPPROTO_TCP, SrcIP: client, DstIP: server,
			SrcPort: clientPort, DstPort: serverPort},
		Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_TCP, SrcIP: server, DstIP: client,
			SrcPort: serverPort, DstPort: clientPort},
		TimeOut: entryTimeout, ProtoInfo: &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_ESTABLISHED},
	}
}
