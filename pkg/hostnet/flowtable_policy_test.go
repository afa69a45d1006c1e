package hostnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
)

// revokedWithin bounds the time from the change of a policy to the end of a flow. The documented
// limit is 1 s. Machines with flow tables are emulated and slow, so the test only logs that time.
const revokedWithin = 10 * time.Second

// TestPolicyEndsFlowsOfTheFlowTable changes a policy so that it denies flows that are in the flow
// table. The packets of these flows do not pass the hooks of the policy's table. Each flow must
// end, and must not begin again.
func TestPolicyEndsFlowsOfTheFlowTable(t *testing.T) {
	l := newFlowLab(t)
	l.fixNeighbours()
	k := l.keepPolicies()
	allow, deny := l.egress(9), l.egress(8)
	k.PutPolicy(allow)
	k.PutNamespace(policy.Namespace{Name: "shop"})
	k.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "client"}, UID: "uid", Node: "here",
		Labels: map[string]string{"app": "client"}})
	k.SetPrefixes(map[string][]netip.Prefix{
		"here": prefixes("198.18.129.0/24", "fd42:aaaa:0:1::/64")})
	k.Listed()
	nettest.Until(t, 10*time.Second, "the pod is judged",
		func() bool { return k.Status().Members == 1 })

	for _, network := range []string{"udp", "tcp"} {
		for _, far := range farAddrs {
			t.Run(network+" to "+far.String(), func(t *testing.T) {
				// Neighbour discovery may take a second.
				nettest.Until(t, 10*time.Second, "a flow is answered",
					func() bool { return l.answers(network, far) })
				c := l.dial(network, far)
				l.inFlowTable(t, c)

				began := time.Now()
				k.PutPolicy(deny)
				nettest.Until(t, revokedWithin, "the flow ends", func() bool {
					return exchange(c, 3, "canary after", 100*time.Millisecond) == 0
				})
				t.Logf("the flow ended after %v", time.Since(began).Round(time.Millisecond))
				if n := exchange(c, 5, "canary later", 100*time.Millisecond); n > 0 {
					t.Errorf("%d of 5 messages were answered once the flow had ended", n)
				}

				k.PutPolicy(allow)
				nettest.Until(t, 10*time.Second, "a new flow is allowed again", func() bool {
					return l.answers(network, far)
				})
			})
		}
	}
	if n := k.Status().Revoked; n < 4 {
		t.Errorf("%d connections were revoked, want those of 4 flows", n)
	}
}

// fixNeighbours adds permanent neighbour entries to the pod and the node, like the plugin, because
// a policy may deny neighbour discovery.
func (l *flowLab) fixNeighbours() {
	l.t.Helper()
	const nodeMAC, podMAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
	l.run(fmt.Sprintf(`ip link set vpod0 address %[1]s
		ip -6 neigh replace fd42:aaaa:0:1::5 lladdr %[2]s dev vpod0`, nodeMAC, podMAC))
	l.pod.Exec(l.t, "sh", "-ec", fmt.Sprintf(`ip link set eth0 address %[2]s
		ip neigh flush dev eth0
		ip -6 neigh replace fd42:aaaa:0:1:1::1 lladdr %[1]s dev eth0`, nodeMAC, podMAC))
}

// inFlowTable makes a flow enter the flow table. Past it, the rules see few packets of the tunnel.
func (l *flowLab) inFlowTable(t *testing.T, c net.Conn) {
	t.Helper()
	const n = 200
	if got := exchange(c, 100, "warming up", time.Second); got != 100 {
		t.Fatalf("%d of 100 answered", got)
	}
	before := l.counter("inward")
	if got := exchange(c, n, "canary before", time.Second); got != n {
		t.Fatalf("%d of %d answered", got, n)
	}
	if seen := l.counter("inward") - before; seen > n/10 {
		t.Fatalf("%d of %d packets from the tunnel passed the rules: the flow is not in the table",
			seen, n)
	}
}

// answers reports whether a new flow of the pod is answered.
func (l *flowLab) answers(network string, far netip.Addr) bool {
	var c net.Conn
	err := l.pod.Do(func() (err error) {
		c, err = net.DialTimeout(network, netip.AddrPortFrom(far, 9).String(), time.Second)
		return err
	})
	if err != nil {
		return false
	}
	defer c.Close()
	return exchange(c, 1, "canary again", time.Second) == 1
}

// egress returns the policy that lets the client send to one port only.
func (l *flowLab) egress(port uint16) policy.Policy {
	var ports []policy.Port
	for _, proto := range []policy.Proto{policy.TCP, policy.UDP} {
		ports = append(ports, policy.Port{Proto: proto, First: port, Last: port})
	}
	p := policy.Policy{Name: policy.Name{Namespace: "shop", Name: "client"},
		Subjects: policy.Selector{{Key: "app", Values: []string{"client"}}}}
	p.Isolates[policy.Egress] = true
	p.Rules[policy.Egress] = []policy.Rule{{Ports: ports}}
	return p
}

// keepPolicies runs a Keeper on the node until the test ends. The node's pod is attached to it.
func (l *flowLab) keepPolicies() *keeper.Keeper {
	l.t.Helper()
	dir := l.t.TempDir()
	paths := pod.Paths{PodDir: filepath.Join(dir, "pods"), ReadyFile: filepath.Join(dir, "ready"),
		PolicyDir: filepath.Join(dir, "policy")}
	k := keeper.New(keeper.PolicyConfig{Node: "here", Paths: paths,
		Log: slog.New(slog.DiscardHandler)})
	l.ns.Run(l.t, k.Begin)

	r := pod.Record{Network: abi.NetworkName, ContainerID: "client", IfName: "eth0",
		HostLink: pod.HostLink("client", "eth0"), MTU: 1420,
		Addrs:    addrs("198.18.129.5", "fd42:aaaa:0:1::5"),
		Workload: pod.Workload{Namespace: "shop", Name: "client", UID: "uid"}}
	text, err := json.Marshal(r)
	errtest.Must(l.t, err)
	errtest.Must(l.t, os.MkdirAll(paths.PodDir, 0o700))
	filetest.Write(l.t, filepath.Join(paths.PodDir, r.HostLink+".json"), text, 0o600)

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.ns.Do(func() error { return k.Run(ctx) }) }()
	l.t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, k.Close()); err != nil {
			l.t.Error(fmt.Errorf("keeper: %w", err))
		}
	})
	return k
}
