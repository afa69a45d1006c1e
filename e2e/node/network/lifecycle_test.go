package network_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Codes of the CNI specification.
const (
	tryAgainLater = 11
	notAvailable  = 50
)

// code returns the code of a plugin's refusal, or 0 if err is not a refusal.
func code(err error) uint {
	var refused *lab.CNIError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return 0
}

// closed checks that a node refuses pods with an error that makes a runtime try again.
func closed(ctx context.Context, t *testing.T, n *lab.Node, when string) {
	t.Helper()
	if err := n.Status(ctx); code(err) != notAvailable {
		t.Errorf("%s: STATUS: %v, want code %d", when, err, notAvailable)
	}
	before := podLinks(ctx, t, n)
	p, err := n.AddPod(ctx, "too-early", lab.PodOptions{})
	if code(err) != tryAgainLater {
		t.Errorf("%s: ADD: %v, want code %d", when, err, tryAgainLater)
	}
	if p != nil {
		_ = p.Del(ctx)
	}
	if now := podLinks(ctx, t, n); now != before {
		t.Errorf("%s: ADD was refused and left links: %s", when, now)
	}
}

func podLinks(ctx context.Context, t *testing.T, n *lab.Node) string {
	t.Helper()
	out, err := n.Exec(ctx, "ip", "-br", "link", "show", "type", "veth")
	errtest.Must(t, err)
	return string(out)
}

// keyOf returns the key that a node uses for a peer, or the zero key if it has none.
func keyOf(ctx context.Context, at *lab.Node, peer string) (wgkey.Public, error) {
	s, err := admin.Fetch(ctx, at.Path(abi.AdminSocket))
	if err != nil {
		return wgkey.Public{}, err
	}
	for _, p := range s.Peers {
		if p.Name == peer {
			return p.PublicKey, nil
		}
	}
	return wgkey.Public{}, nil
}

// takesKey waits until a node uses a key for a peer that is not the old key.
func takesKey(ctx context.Context, t *testing.T, at, peer *lab.Node, old wgkey.Public,
	limit time.Duration) {
	t.Helper()
	err := lab.Until(ctx, limit, func() error {
		key, err := keyOf(ctx, at, peer.Name)
		if err == nil && (key == old || key == wgkey.Public{}) {
			err = errors.New("the new key is not taken over")
		}
		return err
	})
	errtest.Must(t, err)
}

// After a reboot, a node has its CNI configuration on disk, but accepts no pod before its guard is
// in force. Peers accept its new key. Packets that were sent to it meanwhile never leave in clear.
func TestReboot(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	a, b := pair(ctx, t, l)
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	old, err := keyOf(ctx, n1, n2.Name)
	if err != nil || old == (wgkey.Public{}) {
		t.Fatalf("key of %s: %v, %v", n2.Name, old, err)
	}

	// This pod does not notice the reboot and continues to send.
	source := nodetest.Source(ctx, t, a, b.Addr(false), interval)

	errtest.Must(t, errors.Join(n2.Crash(), n2.Boot(ctx, false)))
	if has, err := n2.HasConflist(); err != nil || !has {
		t.Fatalf("the CNI configuration is not on disk after the reboot: %v", err)
	}

	closed(ctx, t, n2, "nothing runs")
	nodetest.StartProgram(ctx, t, n2, "veil-wg")

	closed(ctx, t, n2, "only the worker runs")
	began := time.Now()
	nodetest.StartProgram(ctx, t, n2, "veild")
	nodetest.WaitReady(ctx, t, n2)

	t.Logf("ready for pods %v after veild was started", time.Since(began).Round(time.Millisecond))
	again := nodetest.EchoPod(ctx, t, n2, "again")

	takesKey(ctx, t, n1, n2, old, 20*time.Second)

	t.Logf("the new key is taken over %v after veild was started",
		time.Since(began).Round(time.Millisecond))
	nodetest.Meet(ctx, t, a, again)
	t.Logf("traffic flows %v after veild was started", time.Since(began).Round(time.Millisecond))
	talk(ctx, t, a, again)
	errtest.Check(t, source.Term(ctx))

	nodetest.NoLeaks(t, l)
}

// newPodsTalkAtOnce checks that the first packet of a new pod to an older pod arrives.
func newPodsTalkAtOnce(ctx context.Context, t *testing.T, n *lab.Node, b *lab.Pod) {
	for i := range 6 {
		six := i%2 == 1
		sink := nodetest.Sink(ctx, t, b)
		p := nodetest.AddPod(ctx, t, n, fmt.Sprintf("new-%d", i))
		source := nodetest.Source(ctx, t, p, b.Addr(six), interval)

		errtest.Check(t, sink.WaitLine(ctx, "received 101", 10*time.Second))

		var sent struct{ Sent, Failed uint64 }
		var got traffic.Drained
		errtest.Check(t, errors.Join(source.Result(ctx, &sent), sink.Result(ctx, &got),
			p.Del(ctx)))

		t.Logf("ADD took %v; %d sent, %d refused, %d missing", p.Added.Round(time.Millisecond),
			sent.Sent, sent.Failed, got.Missing)
		// The numbers include the first datagram, so Missing counts it if it is lost.
		if got.Missing > 0 || sent.Failed > 0 {
			t.Errorf("%d of the first datagrams of a new pod were lost, %d refused", got.Missing,
				sent.Failed)
		}
	}
}

// first makes the node assign the first free address next, not the address after the last one.
func first(t *testing.T, n *lab.Node) {
	t.Helper()
	last, err := filepath.Glob(n.Path(filepath.Join(abi.IPAMDir, "*/last_reserved_ip*")))
	if err != nil || len(last) == 0 {
		t.Fatalf("where host-local keeps the last address: %q, %v", last, err)
	}
	for _, path := range last {
		errtest.Must(t, os.Remove(path))
	}
}

// reaches starts an echo server in the pod to and waits until the pod from reaches it.
func reaches(ctx context.Context, t *testing.T, from, to *lab.Pod) {
	t.Helper()
	nodetest.EchoAt(ctx, t, to)
	nodetest.Meet(ctx, t, from, to)
	talk(ctx, t, from, to)
}

// An address moves to another pod, and then with its prefix to another node. A client that keeps
// sending to it reaches the new owner, or no host.
func TestAddressOfADeletedPod(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	a, b := pair(ctx, t, l)
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	var sources []*lab.Process
	for _, to := range b.Addrs {
		for _, from := range []traffic.Place{a, n1} {
			s := nodetest.Source(ctx, t, from, to, interval)
			sources = append(sources, s)
		}
	}
	addrs := slices.Clone(b.Addrs)

	t.Run("to a pod of the same node", func(t *testing.T) {
		errtest.Must(t, b.Del(ctx))
		unreached(ctx, a, n1, addrs)
		first(t, n2)
		other := nodetest.AddPod(ctx, t, n2, "other")
		if !slices.Equal(other.Addrs, addrs) {
			t.Fatalf("the new pod has %v, want %v", other.Addrs, addrs)
		}
		reaches(ctx, t, a, other)
	})

	t.Run("with its prefix to a new node", func(t *testing.T) {
		crash(t, n2)
		errtest.Must(t, l.Control.Client.CoreV1().Nodes().Delete(ctx, n2.Name,
			metav1.DeleteOptions{}))
		nodetest.WaitStatus(ctx, t, n1, 20*time.Second, func(s telemetry.Status) error {
			if len(s.Peers) > 0 {
				return fmt.Errorf("a deleted node stays a peer: %+v", s.Peers)
			}
			return nil
		})
		unreached(ctx, a, n1, addrs)
		n3, err := l.AddNodeFor(ctx, n2.PodPrefixes)
		errtest.Must(t, err)
		nodetest.WaitReady(ctx, t, n3)
		next := nodetest.AddPod(ctx, t, n3, "next")
		if !slices.Equal(next.Addrs, addrs) {
			t.Fatalf("the pod of the new node has %v, want %v", next.Addrs, addrs)
		}
		reaches(ctx, t, a, next)
		if refused := nodetest.NodeStatus(ctx, t, n1).Refused; len(refused) > 0 {
			t.Errorf("refused: %+v", refused)
		}
	})
	for _, s := range sources {
		errtest.Check(t, s.Term(ctx))
	}
	nodetest.NoLeaks(t, l)
}

// unreached opens connections to addresses without an owner, from a pod and from its node. It
// ignores the results; the oracle checks that no packet leaves in clear.
func unreached(ctx context.Context, a *lab.Pod, n *lab.Node, addrs []netip.Addr) {
	tryAll(ctx, []traffic.Place{a, n}, addrs, 200*time.Millisecond, nil)
}

func crash(t *testing.T, n *lab.Node) {
	t.Helper()
	errtest.Must(t, n.Crash())
}
