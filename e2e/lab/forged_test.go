package lab_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

var veilNodes = schema.GroupVersionResource{Group: "kubeveil.io", Version: "v1alpha1",
	Resource: "veilnodes"}

// forgery is a Node, and a VeilNode when it has a key, that somebody wrote to steal from others.
type forgery struct {
	name     string
	addrs    []netip.Addr
	prefixes []netip.Prefix
	// key and claims are what the VeilNode says; no key, no VeilNode.
	key    string
	claims []netip.Prefix
	// incumbent keeps what was claimed, "" when nobody's is.
	incumbent string
	// because is in the reason of the refusal.
	because string
}

// forgeries are those of a lab. Number i holds the harmless addresses 198.18.0.(200+i), and pod
// prefixes of nodes that are not there.
func forgeries(l *lab.Lab, victimKey string) []forgery {
	f, n2 := l.Family(), l.Nodes()[1]
	fresh := func(i byte) []netip.Addr {
		var out []netip.Addr
		for _, p := range f.Underlay(200 + i) {
			out = append(out, p.Addr())
		}
		return out
	}
	own := strings.Repeat("A", 42)
	service := []netip.Addr{f.ServiceRanges()[0].Addr().Next().Next()}

	return []forgery{
		{name: "a-duplicate-key", addrs: fresh(0), prefixes: f.PodPrefixes(90), key: victimKey,
			claims: f.PodPrefixes(90), incumbent: n2.Name, because: "public key"},
		{name: "a-stolen-prefix", addrs: fresh(1), prefixes: f.PodPrefixes(91), key: own + "E=",
			claims: n2.PodPrefixes, because: "Node.spec.podCIDRs"},
		{name: "a-node-with-anothers-prefix", addrs: fresh(2), prefixes: n2.PodPrefixes,
			key: own + "I=", claims: n2.PodPrefixes, incumbent: n2.Name, because: "pod prefix"},
		// The API names the API server's addresses of one family only (EndpointSlice
		// default/kubernetes).
		{name: "a-worker-as-api-server", addrs: l.Control.Addrs()[:1], prefixes: f.PodPrefixes(93),
			key: own + "M=", claims: f.PodPrefixes(93), because: "API server"},
		{name: "a-node-with-anothers-address", addrs: n2.Addrs, prefixes: f.PodPrefixes(94),
			key: own + "Q=", claims: f.PodPrefixes(94), incumbent: n2.Name,
			because: "node address"},
		{name: "a-service-address", addrs: service, prefixes: f.PodPrefixes(95), key: own + "U=",
			claims: f.PodPrefixes(95), because: "service range"},
		{name: "a-gateway", addrs: l.OutsideAddrs(), prefixes: f.PodPrefixes(96), key: own + "Y=",
			claims: f.PodPrefixes(96), because: "gateway"},
	}
}

// create writes the forgery as whoever may write everything would.
func (f forgery) create(ctx context.Context, c *lab.Control) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.name}}
	for _, p := range f.prefixes {
		node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, p.String())
	}

	if len(f.prefixes) > 0 {
		node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	}
	node, err := c.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	for _, a := range f.addrs {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}

	if node, err = c.Client.CoreV1().Nodes().UpdateStatus(ctx, node,
		metav1.UpdateOptions{}); err != nil || f.key == "" {
		return err
	}

	var endpoints, claims []any
	for _, a := range f.addrs {
		endpoints = append(endpoints, netip.AddrPortFrom(a, config.TunnelPort).String())
	}

	for _, p := range f.claims {
		claims = append(claims, p.String())
	}

	v := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubeveil.io/v1alpha1", "kind": "VeilNode",
		"metadata": map[string]any{"name": f.name, "ownerReferences": []any{map[string]any{
			"apiVersion": "v1", "kind": "Node", "name": f.name, "uid": string(node.UID)}}},
		"spec": map[string]any{"keys": []any{map[string]any{"epoch": int64(0), "publicKey": f.key}},
			"endpoints": endpoints, "podPrefixes": claims},
	}}
	_, err = c.Dynamic.Resource(veilNodes).Create(ctx, v, metav1.CreateOptions{})
	return err
}

func (f forgery) delete(ctx context.Context, c *lab.Control) error {
	if err := c.Dynamic.Resource(veilNodes).Delete(ctx, f.name,
		metav1.DeleteOptions{}); err != nil {
		return err
	}
	return c.Client.CoreV1().Nodes().Delete(ctx, f.name, metav1.DeleteOptions{})
}

// refused says whether a status holds the refusal.
func (f forgery) refused(s telemetry.Status) error {
	for _, r := range s.Refused {
		if r.Node == f.name && r.Incumbent == f.incumbent && strings.Contains(r.Reason, f.because) {
			return nil
		}
	}
	return fmt.Errorf("%s is not refused for %q in favour of %q: %v", f.name, f.because,
		f.incumbent, s.Refused)
}

// Objects that lie are refused, loudly, and who held what they claim keeps it.
func TestForgedObjects(t *testing.T) {
	ctx, l := newLab(t, lab.Options{})
	pods := echoPods(ctx, t, l)
	meet(ctx, t, pods[0], pods[1])
	if _, err := lab.Echo(ctx, l.Outside); err != nil {
		t.Fatal(err)
	}

	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	reachable(ctx, t, l, pods[0])
	before := nodeStatus(ctx, t, n1).Peers
	held, err := lab.Hold(ctx, pods[0], pods[1].Addr(false))
	if err != nil {
		t.Fatal(err)
	}

	all := forgeries(l, nodeStatus(ctx, t, n2).Devices[0].PublicKey.String())
	for _, f := range all {
		t.Run(f.name, func(t *testing.T) {
			if err := f.create(ctx, l.Control); err != nil {
				t.Fatal(err)
			}
			for _, n := range l.Nodes() {
				s := waitStatus(ctx, t, n, 10*time.Second, f.refused)
				loud(ctx, t, n, f)
				if n == n1 {
					incumbents(t, before, s.Peers)
				}
			}
			talk(ctx, t, pods[0], pods[1])
			reachable(ctx, t, l, pods[0])
		})
	}

	for _, snapshot := range []string{"kept", "lost"} {
		t.Run("restart, last good table "+snapshot, func(t *testing.T) {
			if snapshot == "lost" {
				if err := os.Remove(n1.Path(config.SnapshotFile)); err != nil {
					t.Fatal(err)
				}
			}

			restartVeild(ctx, t, n1)
			want := before
			if snapshot == "lost" {
				// Nobody had the contested addresses: they are nobody's, and the node stays a peer
				// without them.
				want = withoutAddrs(before, n2.Addrs)
			}

			for _, f := range all {
				if snapshot == "lost" && slices.Equal(f.addrs, n2.Addrs) {
					f.incumbent, f.because = "", "nobody's"
				}
				incumbents(t, want, waitStatus(ctx, t, n1, 10*time.Second, f.refused).Peers)
			}

			talk(ctx, t, pods[0], pods[1])
			reachable(ctx, t, l, pods[0])
		})
	}

	t.Run("deleted", func(t *testing.T) {
		for _, f := range all {
			if err := f.delete(ctx, l.Control); err != nil {
				t.Fatal(err)
			}
		}
		// Most of the Nodes go: veild may wait 10 s for a second list before it believes that.
		waitStatus(ctx, t, n1, 40*time.Second, func(s telemetry.Status) error {
			if len(s.Refused) > 0 {
				return fmt.Errorf("still refused: %v", s.Refused)
			}
			return nil
		})
	})

	var h lab.Held
	if err := held.Result(ctx, &h); err != nil {
		t.Errorf("the incumbent's traffic was disturbed: %v", err)
	}

	t.Logf("one connection through it all: %d records, longest gap %.0f ms", h.Records,
		h.MaxGapMillis)
	noSecrets(ctx, t, l, nil)
	noLeaks(t, l)
}

// loud wants a refusal in the log and the metrics.
func loud(ctx context.Context, t *testing.T, n *lab.Node, f forgery) {
	t.Helper()
	log, err := os.ReadFile(n.Program("veild").Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(strings.Split(string(log), "\n"), func(line string) bool {
		return strings.Contains(line, "claim refused") && strings.Contains(line, f.name) &&
			strings.Contains(line, f.because)
	}) {
		t.Errorf("the log of %s does not name the refusal of %s", n.Name, f.name)
	}
	if want := fmt.Sprintf("kubeveil_claims_refused{node=%q}",
		f.name); !strings.Contains(nodeMetrics(ctx, t, n), want) {
		t.Errorf("the metrics of %s lack %s", n.Name, want)
	}
}

// incumbents wants the peers that carry traffic to be those before.
func incumbents(t *testing.T, before, now []telemetry.Peer) {
	t.Helper()
	// A node that lies about an address alone is a peer without it.
	now = slices.DeleteFunc(slices.Clone(now), func(p telemetry.Peer) bool {
		return !slices.ContainsFunc(before, func(b telemetry.Peer) bool { return b.Name == p.Name })
	})
	same := func(a, b telemetry.Peer) bool {
		return a.Name == b.Name && a.PublicKey == b.PublicKey &&
			a.Endpoint.Addr() == b.Endpoint.Addr() && slices.Equal(a.AllowedIPs, b.AllowedIPs)
	}
	if !slices.EqualFunc(before, now, same) {
		t.Errorf("peers changed from %+v to %+v", before, now)
	}
}

// withoutAddrs returns peers without those addresses among what may come out of their tunnels.
func withoutAddrs(peers []telemetry.Peer, addrs []netip.Addr) []telemetry.Peer {
	peers = slices.Clone(peers)
	for i, p := range peers {
		peers[i].AllowedIPs = slices.DeleteFunc(slices.Clone(p.AllowedIPs),
			func(x netip.Prefix) bool {
				return x.IsSingleIP() && slices.Contains(addrs, x.Addr())
			})
	}
	return peers
}

// reachable wants a pod to reach the API server and a host outside, as before.
func reachable(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod) {
	t.Helper()
	for _, a := range l.Control.Addrs() {
		if _, err := p.Exec(ctx, "timeout", "5", "bash", "-c",
			fmt.Sprintf("exec 3<>/dev/tcp/%s/6443", a)); err != nil {
			t.Errorf("a pod to the API server: %v", err)
		}
	}
	for _, a := range l.OutsideAddrs() {
		for _, proto := range []string{"tcp", "udp"} {
			if _, err := lab.Send(ctx, p, lab.Exchange{Proto: proto, To: a, Egress: true}); err !=
				nil {
				t.Errorf("a pod to the outside over %s: %v", proto, err)
			}
		}
	}
}
