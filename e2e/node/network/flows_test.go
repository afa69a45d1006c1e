package network_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// messages is the number of messages of a flow of the matrix. Each is answered. The tunnels' own
// messages in this time are fewer.
const messages = 200

// sendLimit bounds the time in which the messages of a flow are answered. An emulated machine needs
// more than five seconds.
const sendLimit = time.Minute

// flowCase is a cell of the matrix: who sends to which address, which row is shown, and on which
// nodes.
type flowCase struct {
	what string
	from traffic.Place
	to   []netip.Addr // one of each family
	port int
	// client holds the client's addresses that the nodes see; nil means the addresses of from.
	client []netip.Addr
	egress bool
	// hosts reports whether the flow is from host to host. Such a flow must not have a canary.
	hosts bool
	// past reports whether a route bypasses the tunnel. Such a flow must not be answered.
	past  bool
	row   int
	nodes []*lab.Node
}

// veilctl flows must show for each flow of the matrix the class of the frames that the oracle saw.
// So the test only lists the expected rows, not the classes.
func TestClassOfEachFlowIsTheClassOfItsFrames(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true})
	a, b := l.Nodes()[0], l.Nodes()[1]
	web, err := a.AddPod(ctx, "web", lab.PodOptions{Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "uid-of-web-0"}}})
	errtest.Must(t, err)
	near, far := nodetest.EchoPod(ctx, t, a, "near"), nodetest.EchoPod(ctx, t, b, "far")
	for _, at := range []traffic.Place{web, a, b, l.Outside} {
		nodetest.EchoAt(ctx, t, at)
	}
	nodetest.Meet(ctx, t, web, far)
	foreign(ctx, t, a, "foreign_host", published(portToPod, web.Addrs))
	foreign(ctx, t, a, "foreign_near", published(portToOwn, web.Addrs))
	foreign(ctx, t, a, "foreign_far", published(portToThird, far.Addrs))
	for _, n := range l.Nodes() {
		for _, proto := range []uint8{leak.TCP, leak.UDP} {
			for _, addr := range n.Addrs {
				l.Oracle.Update(func(r *leak.Rules) {
					for _, port := range []uint16{traffic.EchoPort, portToPod} {
						r.Flows = append(r.Flows, leak.Flow{Name: "host to host", Proto: proto,
							Addr: addr, Port: port})
					}
				})
			}
		}
	}

	outside, onA, onB, both := l.OutsideAddrs(), []*lab.Node{a}, []*lab.Node{b}, l.Nodes()
	cases := []flowCase{
		{what: "pod to pod", from: web, to: far.Addrs, nodes: both},
		{what: "pod to pod of the node", from: web, to: near.Addrs, nodes: onA},
		{what: "pod to its node", from: web, to: a.Addrs, nodes: onA},
		{what: "pod to node", from: web, to: b.Addrs, nodes: both},
		{what: "host to pod", from: a, to: far.Addrs, nodes: both},
		{what: "host to its pod", from: a, to: web.Addrs, nodes: onA},
		{what: "host to itself", from: a, to: a.Addrs, nodes: onA},
		{what: "host to host", from: a, to: b.Addrs, hosts: true, row: 2, nodes: both},
		{what: "host to a port of a pod", from: b, to: a.Addrs, port: portToPod, hosts: true, row: 2,
			nodes: both},
		{what: "pod to a port of a pod", from: far, to: a.Addrs, port: portToOwn, nodes: both},
		{what: "pod to outside", from: web, to: outside, egress: true, row: 1, nodes: onA},
		{what: "host to outside", from: a, to: outside, egress: true, row: 1, nodes: onA},
		{what: "far pod to outside", from: far, to: outside, egress: true, row: 1, nodes: onB},
		{what: "far host to outside", from: b, to: outside, egress: true, row: 1, nodes: onB},
		{what: "outside to a port of a pod", from: l.Outside, to: a.Addrs, client: outside,
			port: portToOwn, egress: true, row: 3, nodes: onA},
		{what: "outside to a port of a far pod", from: l.Outside, to: a.Addrs, client: outside,
			port: portToThird, row: 3, nodes: onA, egress: true},
		{what: "pod to pod past the tunnel", from: near, to: far.Addrs, past: true, nodes: onA},
	}
	gone := deletedNode(ctx, t, l)
	cases = append(cases,
		flowCase{what: "pod to a deleted node", from: web, to: gone, egress: true, row: 8, nodes: onA},
		flowCase{what: "host to a deleted node", from: a, to: gone, egress: true, row: 1, nodes: onA})
	ways := 0
	for _, c := range cases {
		t.Run(c.what, func(t *testing.T) { ways += c.check(ctx, t, l) })
	}
	t.Run("untracked ways in clear", func(t *testing.T) { ways += untrackedWays(ctx, t, l) })
	if ways < 50 && !t.Failed() {
		t.Errorf("%d ways of making a flow in clear are shown, want 50", ways)
	}
	nodetest.VeilctlSays(ctx, t, l, a, "flows --clear", "host to host, in clear", "carry the tunnels",
		"shop/web-0", "Not seen: packets that conntrack does not track", "row 11", "row 7",
		"are shown as row 1, because another program translates services")
	for args, want := range map[string]string{"--pod shop/web": "shop/web-0",
		"--class clear": "outside, host"} {
		_, err := a.Exec(ctx, l.Program("veilctl"), strings.Fields("flows "+args)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// deletedNode returns the addresses of a host with an echo server. The host was announced as a node
// and then deleted.
func deletedNode(ctx context.Context, t *testing.T, l *lab.Lab) (addrs []netip.Addr) {
	t.Helper()
	const last = 77
	for _, p := range l.Family().Underlay(last) {
		addrs = append(addrs, p.Addr())
	}
	l.Oracle.Update(func(r *leak.Rules) { r.Outside = append(r.Outside, addrs...) })
	host, err := l.AddHost(ctx, "old", last)
	errtest.Must(t, err)
	nodetest.EchoAt(ctx, t, host)

	protected := func(want bool) func(telemetry.Status) error {
		return func(s telemetry.Status) error {
			if slices.Contains(s.Guard.NodeAddrs, addrs[0]) != want {
				return fmt.Errorf("the guard protects %v", s.Guard.NodeAddrs)
			}
			return nil
		}
	}
	err = l.Announce(ctx, cluster.Node{Name: "old", Addresses: addrs})
	errtest.Must(t, err)
	nodetest.WaitStatus(ctx, t, l.Nodes()[0], 20*time.Second, protected(true))
	errtest.Must(t, l.Withdraw(ctx, "old"))
	nodetest.WaitStatus(ctx, t, l.Nodes()[0], 20*time.Second, protected(false))
	return addrs
}

// check sends the traffic by both protocols and families, one flow after the other. It returns the
// number of flows in clear that --clear shows with their row.
func (c flowCase) check(ctx context.Context, t *testing.T, l *lab.Lab) (clear int) {
	for i, to := range c.to {
		for _, proto := range []string{"tcp", "udp"} {
			before := l.Oracle.Seen().Kinds
			if err := c.send(ctx, l, proto, to); err != nil {
				t.Errorf("to %s over %s: %v", to, proto, err)
				continue
			}

			var want telemetry.FlowClass
			err := lab.Until(ctx, 30*time.Second, func() error {
				want = classOf(before, l.Oracle.Seen().Kinds)
				if c.past && want == telemetry.FlowLocal { // There are no frames.
					want = telemetry.FlowRefused
				}
				for _, n := range c.nodes {
					if err := c.shown(ctx, l, n, proto, i, want); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("to %s over %s: the frames are %q: %v", to, proto, want, err)
			} else if c.row > 0 {
				clear++
			}
		}
	}
	return clear
}

// send sends the messages of one flow.
func (c flowCase) send(ctx context.Context, l *lab.Lab, proto string, to netip.Addr) error {
	port := c.port
	if port == 0 {
		port = traffic.EchoPort
	}
	if c.past {
		return c.sendPast(ctx, l, proto, to)
	}
	if !c.hosts {
		_, err := traffic.Send(ctx, c.from, traffic.Exchange{Proto: proto, To: to, Port: port,
			Count: messages, Egress: c.egress, Timeout: sendLimit})
		return err
	}

	// Traffic between hosts must not have a canary.
	cmd := c.from.Command(ctx, l.Program("veil-tools"), "echo-send", "--proto", proto, "--to",
		netip.AddrPortFrom(to, uint16(port)).String(), "--count", fmt.Sprint(messages),
		"--timeout", sendLimit.String())
	cmd.Env = append(cmd.Env, traffic.CanaryEnv+"=between-hosts")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// sendPast sends a message while an administrator's route leads past the tunnel.
func (c flowCase) sendPast(ctx context.Context, l *lab.Lab, proto string, to netip.Addr) error {
	n, i := c.nodes[0], 0
	if to.Is6() {
		i = 1
	}
	route := fmt.Sprintf("%s via %s table %d", to, l.OutsideAddrs()[i], abi.TablePod)
	if err := n.IP(ctx, "route replace "+route); err != nil {
		return err
	}
	_, err := traffic.Send(ctx, c.from, traffic.Exchange{Proto: proto, To: to, Count: 1,
		Timeout: 300 * time.Millisecond})
	if err == nil {
		return errors.New("it was answered")
	}
	return nil
}

// classOf returns the class of the frames that the oracle counted between before and now.
func classOf(before, now map[leak.Kind]uint64) telemetry.FlowClass {
	switch {
	case now[leak.Egress]-before[leak.Egress] >= messages:
		return telemetry.FlowOutside
	case now[leak.Control]-before[leak.Control] >= messages:
		return telemetry.FlowHost
	case now[leak.Tunnel]-before[leak.Tunnel] >= messages:
		return telemetry.FlowTunnel
	}
	return telemetry.FlowLocal
}

// shown returns an error unless a node shows the flow to the i-th address, and only with that
// class.
func (c flowCase) shown(ctx context.Context, l *lab.Lab, n *lab.Node, proto string, i int,
	class telemetry.FlowClass) error {
	args := []string{"flows", "-o", "json"}
	if c.row > 0 {
		args = append(args, "--clear")
	}
	out, err := n.Exec(ctx, l.Program("veilctl"), args...)
	if err != nil {
		return err
	}
	client := c.client
	if client == nil {
		client = addrsAt(c.from)
	}

	found := false
	for line := range bytes.Lines(out) {
		var f telemetry.Flow
		if err := json.Unmarshal(line, &f); err != nil {
			return err
		}

		original, port := f.Original, f.OriginalPort
		if !original.IsValid() {
			original, port = f.Server, f.ServerPort
		}
		want := c.port
		if want == 0 {
			want = traffic.EchoPort
		}
		if f.Protocol != proto || f.Client != client[i] || original != c.to[i] || int(port) != want ||
			f.Reason == "pod_no_route" { // an attempt before the nodes had each other's keys
			continue
		}
		found = true
		if f.Class != class || f.Row != c.row || f.Alarm {
			return fmt.Errorf("%s shows %s", n.Name, line)
		}
	}
	if !found {
		return errors.New(n.Name + " shows no such flow")
	}
	return nil
}

// addrsAt returns the addresses of a node or a pod.
func addrsAt(p traffic.Place) []netip.Addr {
	if pod, ok := p.(*lab.Pod); ok {
		return pod.Addrs
	}
	return p.(*lab.Node).Addrs
}
