package node_test

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
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// forgedEvidence are what the operator of the network can say of node-2 to node-1.
var forgedEvidence = map[string]func(ctx context.Context, t *testing.T, l *lab.Lab){
	"the default route leads to a worker":               moveDefaultRoute,
	"the API server's name has the address of a worker": moveServerName,
}

// Evidence that the network forges (DHCP, DNS) does not make a believed worker an address
// outside: what pods send it stays in its tunnel.
func TestForgedEvidenceOpensNothing(t *testing.T) {
	t.Parallel()
	for name, forge := range forgedEvidence {
		t.Run(name, func(t *testing.T) {
			ctx, l := newLab(t, lab.Options{})
			pods := echoPods(ctx, t, l)
			echoAt(ctx, t, l.Nodes()[1])
			forge(ctx, t, l)
			for _, when := range []string{"live", "after a restart"} {
				if when != "live" {
					restartVeild(ctx, t, l.Nodes()[0])
				}
				waitStatus(ctx, t, l.Nodes()[0], 10*time.Second, peersAre("node-2"))
				tryWorker(ctx, pods[0], l.Nodes()[1], func(to netip.Addr, proto string, err error) {
					if err != nil {
						t.Errorf("%s: to %s over %s: %v", when, to, proto, err)
					}
				})
			}
			noLeaks(t, l)
		})
	}
}

// Where this node never knew the worker, evidence refuses it. That is the control, which the
// oracle must see, and with `outside` written nothing of it leaves.
func TestForgedEvidenceAgainstANewcomer(t *testing.T) {
	t.Parallel()
	family := lab.Dual
	var networks []netip.Prefix
	for _, p := range family.Underlay(1) {
		networks = append(networks, p.Masked())
	}
	for _, closed := range []bool{false, true} {
		t.Run(map[bool]string{false: "control: seen in clear", true: "outside is written"}[closed],
			func(t *testing.T) {
				opts := lab.Options{Family: family}
				if closed {
					opts.VeildConfig = map[string]any{"nodeRanges": networks,
						"outside": []netip.Prefix{}}
				}
				ctx, l := newLab(t, opts)
				pods := echoPods(ctx, t, l)
				n1, n2 := l.Nodes()[0], l.Nodes()[1]
				echoAt(ctx, t, n2)
				moveDefaultRoute(ctx, t, l)
				if err := os.Remove(n1.Path(abi.SnapshotFile)); err != nil {
					t.Fatal(err)
				}
				restartVeild(ctx, t, n1)
				s := waitStatus(ctx, t, n1, 10*time.Second, func(s telemetry.Status) error {
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

				answers := 0
				tryWorker(ctx, pods[0], n2, func(_ netip.Addr, _ string, err error) {
					if err == nil {
						answers++
					}
				})
				if closed {
					if answers > 0 {
						t.Errorf("%d answers of a worker that is closed", answers)
					}
					noLeaks(t, l)
					return
				}
				result, err := l.Finish()
				if err != nil {
					t.Fatal(err)
				}
				if answers == 0 || result.Kinds[leak.LeakCanary] == 0 {
					t.Errorf("%d answers, and the oracle saw %v: the cases that see nothing "+
						"prove nothing", answers, result.Kinds)
				}
			})
	}
}

func echoAt(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	if _, err := lab.Echo(ctx, n); err != nil {
		t.Fatal(err)
	}
}

// tryWorker sends from a pod to a port of each address of a node, and tells each result.
func tryWorker(ctx context.Context, p *lab.Pod, n *lab.Node,
	result func(to netip.Addr, proto string, err error)) {
	for _, to := range n.Addrs {
		for _, proto := range []string{"tcp", "udp"} {
			_, err := lab.Send(ctx, p, lab.Exchange{Proto: proto, To: to, Timeout: 2 * time.Second})
			result(to, proto, err)
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
		if err := l.Nodes()[0].IP(ctx, fmt.Sprintf("route replace default via %s dev eth0",
			a)); err != nil {
			t.Fatal(err)
		}
	}
}

// moveServerName makes node-1 reach the API server by name, and that name, beside its own, node-2's
// addresses.
func moveServerName(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	n1, n2, api := l.Nodes()[0], l.Nodes()[1], l.Control.Addrs()[0]
	hosts := fmt.Sprintf("127.0.0.1 localhost\n%s api.example\n", api)
	for _, a := range n2.Addrs {
		hosts += fmt.Sprintf("%s api.example\n", a)
	}

	file := filepath.Join(n1.Disk(), "etc/kubeveil/kubeconfig")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	named := strings.Replace(string(text), fmt.Sprintf("%q", l.Control.URL()),
		fmt.Sprintf("%q, tls-server-name: %q", "https://api.example:6443", api), 1)
	if named == string(text) {
		t.Fatalf("the kubeconfig has no server %s:\n%s", l.Control.URL(), text)
	}
	if err := errors.Join(os.WriteFile(file, []byte(named), 0o600),
		os.WriteFile(filepath.Join(n1.Disk(), "etc/hosts"), []byte(hosts), 0o644)); err != nil {
		t.Fatal(err)
	}

	restartVeild(ctx, t, n1)
	err = lab.Until(ctx, 20*time.Second, func() error {
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
	if err != nil {
		t.Fatal(err)
	}
}
