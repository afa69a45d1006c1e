package network_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// forgedEvidence holds changes by which the operator of the network can deceive node-1 about
// node-2.
var forgedEvidence = map[string]func(ctx context.Context, t *testing.T, l *lab.Lab){
	"the default route leads to a worker":               moveDefaultRoute,
	"the API server's name has the address of a worker": moveServerName,
}

// Forged evidence of the network (DHCP, DNS) does not make a node that is already a peer count as
// outside: pods' packets to it stay in its tunnel.
func TestForgedEvidenceOpensNothing(t *testing.T) {
	t.Parallel()
	for name, forge := range forgedEvidence {
		t.Run(name, func(t *testing.T) {
			ctx, l := nodetest.NewLab(t, lab.Options{})
			pods := nodetest.EchoPods(ctx, t, l)
			answerAt(ctx, t, l.Nodes()[1])
			forge(ctx, t, l)
			for _, when := range []string{"live", "after a restart"} {
				if when != "live" {
					restartVeild(ctx, t, l.Nodes()[0])
				}
				nodetest.WaitStatus(ctx, t, l.Nodes()[0], 10*time.Second, peersAre("node-2"))
				tryWorker(ctx, pods[0], l.Nodes()[1].Addrs, func(what string, err error) {
					if err != nil {
						t.Errorf("%s: %s: %v", when, what, err)
					}
				})
			}
			nodetest.NoLeaks(t, l)
		})
	}
}

// If the worker was never a peer, the node refuses it because of the forged evidence. This is the
// control, in which the oracle must see packets in clear. With `outside` configured, no packet
// leaves in clear.
func TestForgedEvidenceAgainstANewcomer(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		t.Run(map[bool]string{false: "control: seen in clear", true: "outside is written"}[closed],
			func(t *testing.T) {
				opts := lab.Options{}
				if closed {
					opts.VeildConfig = map[string]any{"nodeRanges": nodeNetworks(lab.Dual),
						"outside": []netip.Prefix{}}
				}
				ctx, l := nodetest.NewLab(t, opts)
				pods := nodetest.EchoPods(ctx, t, l)
				n1, n2 := l.Nodes()[0], l.Nodes()[1]
				answerAt(ctx, t, n2)
				moveDefaultRoute(ctx, t, l)
				errtest.Must(t, os.Remove(n1.Path(abi.SnapshotFile)))
				restartVeild(ctx, t, n1)
				s := nodetest.WaitStatus(ctx, t, n1, 10*time.Second,
					func(s telemetry.Status) error {
						if !slices.ContainsFunc(s.Refused, func(r cluster.Refusal) bool {
							return r.Node == n2.Name && strings.Contains(r.Reason, "gateway")
						}) {
							return fmt.Errorf("%s is not refused: %v", n2.Name, s.Refused)
						}
						return nil
					})
				if open := slices.ContainsFunc(s.InClear, func(x string) bool {
					return strings.Contains(x, "no Node names")
				}); open == closed {
					t.Errorf("status says %q", s.InClear)
				}

				expectClear(ctx, t, l, pods[0], n2.Addrs, !closed)
			})
	}
}

// TestAddressThatNoNodeLists is row 8 of the exceptions: a pod sends to an address inside
// nodeRanges that a worker has and its Node does not name.
func TestAddressThatNoNodeLists(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		t.Run(map[bool]string{false: "the exception: in clear", true: "outside is written"}[closed],
			func(t *testing.T) {
				settings := map[string]any{"nodeRanges": nodeNetworks(lab.Dual)}
				if closed {
					settings["outside"] = []netip.Prefix{}
				}
				ctx, l := nodetest.NewLab(t, lab.Options{VeildConfig: settings})
				pods := nodetest.EchoPods(ctx, t, l)
				n2 := l.Nodes()[1]
				answerAt(ctx, t, n2)
				var unlisted []netip.Addr
				for _, p := range lab.Dual.Underlay(200) {
					unlisted = append(unlisted, p.Addr())
					errtest.Must(t, n2.IP(ctx, fmt.Sprintf("address add %s dev eth0", p)))
				}
				expectClear(ctx, t, l, pods[0], unlisted, !closed)
			})
	}
}

// expectClear sends from a pod to addresses of a worker. If clear is set, each datagram must be in
// clear and be answered; otherwise none may be. It ends the lab.
func expectClear(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod, to []netip.Addr,
	clear bool) {
	t.Helper()
	var answered []string
	before := l.Oracle.Seen().Kinds[leak.LeakCanary]
	tryWorker(ctx, p, to, func(what string, err error) {
		if err == nil {
			answered = append(answered, what)
		}
		if clear && strings.HasSuffix(what, "udp") {
			rises(ctx, t, l, leak.LeakCanary, before)
		}
		before = l.Oracle.Seen().Kinds[leak.LeakCanary]
	})
	if !clear {
		if len(answered) > 0 {
			t.Errorf("what is closed answers: %q", answered)
		}
		nodetest.NoLeaks(t, l)
		return
	}
	for _, a := range to {
		if want := fmt.Sprintf("a process at %s over tcp", a); !slices.Contains(answered, want) {
			t.Errorf("no answer of %s: the cases that are closed prove nothing", want)
		}
	}
	if _, err := l.Finish(); err != nil {
		t.Error(err)
	}
}

// nodeNetworks returns the networks of the nodes' addresses.
func nodeNetworks(family lab.Family) (networks []netip.Prefix) {
	for _, p := range family.Underlay(1) {
		networks = append(networks, p.Masked())
	}
	return networks
}

// answerAt lets a node answer at EchoPort by a process of its own, and at a hostPort by a pod.
func answerAt(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	nodetest.EchoAt(ctx, t, n)
	nodetest.PodWithHostPort(ctx, t, n)
}

// tryWorker sends from a pod to addresses of a node where answerAt listens, and returns each
// result.
func tryWorker(ctx context.Context, p *lab.Pod, addrs []netip.Addr,
	result func(what string, err error)) {
	for _, to := range addrs {
		for name, port := range map[string]int{"a process": traffic.EchoPort,
			"a hostPort": nodetest.HostPortOfPod} {
			for _, proto := range []string{"tcp", "udp"} {
				_, err := traffic.Send(ctx, p, traffic.Exchange{Proto: proto, To: to, Port: port,
					Timeout: 2 * time.Second})
				result(fmt.Sprintf("%s at %s over %s", name, to, proto), err)
			}
		}
	}
}

func peersAre(name string) func(telemetry.Status) error {
	return func(s telemetry.Status) error {
		for _, p := range s.Peers {
			if p.Name == name && p.State == telemetry.PeerUp {
				return nil
			}
		}
		return fmt.Errorf("%s is not up: %+v, refused %v", name, s.Peers, s.Refused)
	}
}

// moveDefaultRoute makes node-2 the gateway of node-1, as DHCP can.
func moveDefaultRoute(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, a := range l.Nodes()[1].Addrs {
		errtest.Must(t, l.Nodes()[0].IP(ctx, fmt.Sprintf("route replace default via %s dev eth0",
			a)))
	}
}

// moveServerName makes node-1 reach the API server by name, and adds node-2's addresses to that
// name.
func moveServerName(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	n1, n2, api := l.Nodes()[0], l.Nodes()[1], l.Control.Addrs()[0]
	hosts := fmt.Sprintf("127.0.0.1 localhost\n%s api.example\n", api)
	for _, a := range n2.Addrs {
		hosts += fmt.Sprintf("%s api.example\n", a)
	}

	file := filepath.Join(n1.Disk(), "etc/kubeveil/kubeconfig")
	text := filetest.Read(t, file)
	named := strings.Replace(string(text), "server: "+l.Control.URL(),
		fmt.Sprintf("server: https://api.example:6443\n    tls-server-name: %q", api), 1)
	if named == string(text) {
		t.Fatalf("the kubeconfig has no server %s:\n%s", l.Control.URL(), text)
	}
	errtest.Must(t, errors.Join(os.WriteFile(file, []byte(named), 0o600),
		os.WriteFile(filepath.Join(n1.Disk(), "etc/hosts"), []byte(hosts), 0o644)))

	restartVeild(ctx, t, n1)
	err := lab.Until(ctx, 20*time.Second, func() error {
		b, err := os.ReadFile(n1.Path(abi.SnapshotFile))
		if err != nil {
			return err
		}
		last, err := source.Parse(b)
		if err == nil && !slices.Contains(last.APIServers, n2.Addrs[0]) {
			known, _ := json.Marshal(last.APIServers)
			err = fmt.Errorf("the API servers are %s", known)
		}
		return err
	})
	errtest.Must(t, err)
}
