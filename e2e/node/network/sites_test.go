package network_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Two clusters of one node each are sites of each other. Their pods talk encrypted, with their own
// addresses. A SiteNode outside of its site is refused. A closed site gets no packet.
func TestTwoClustersTalkNodeToNode(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true, Sites: true})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	noteSources(ctx, t, pods[1])
	talk(ctx, t, pods[0], pods[1])
	sources := notedSources(ctx, t, pods[1])
	for _, a := range pods[0].Addrs {
		if !slices.Contains(sources, a.String()) || len(sources) != len(pods[0].Addrs) {
			t.Errorf("the pod was reached from %q, want %v", sources, pods[0].Addrs)
		}
	}

	n := l.Nodes()[0]
	s := nodetest.NodeStatus(ctx, t, n)
	if len(s.Sites) != 1 || s.Sites[0].Nodes != 1 || len(s.Peers) != 1 ||
		s.Peers[0].Name != "node-2/node-2" || len(s.Refused) > 0 {
		t.Errorf("sites %+v, peers %+v, refused %+v", s.Sites, s.Peers, s.Refused)
	}
	nodetest.VeilctlSays(ctx, t, l, n, "status", "node-2, open, 1 nodes are peers")

	if err := l.Announce(ctx, cluster.Node{Name: "node-2/forged",
		PodPrefixes: n.PodPrefixes}); err != nil {
		t.Fatal(err)
	}
	nodetest.WaitStatus(ctx, t, n, 10*time.Second, func(s telemetry.Status) error {
		if !slices.ContainsFunc(s.Refused, func(r cluster.Refusal) bool {
			return r.Node == "node-2/forged" && strings.Contains(r.Reason, "outside of podRanges")
		}) {
			return fmt.Errorf("refused %+v", s.Refused)
		}
		return nil
	})
	talk(ctx, t, pods[0], pods[1])

	closed := l.SitesOf(n)
	for i := range closed {
		closed[i].Reach = cluster.ReachNone
	}
	nodetest.Reconfigure(ctx, t, n, map[string]any{"sites": closed})
	nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if !s.Ready || slices.ContainsFunc(s.Peers, func(p telemetry.Peer) bool {
			return p.Device != ""
		}) {
			return errors.New("the site's node is still a peer")
		}
		return nil
	})
	for _, from := range []traffic.Place{pods[0], n} {
		for _, to := range pods[1].Addrs {
			for _, proto := range []string{"tcp", "udp"} {
				if _, err := traffic.Send(ctx, from, traffic.Exchange{Proto: proto, To: to, Count: 1,
					Timeout: time.Second}); err == nil {
					t.Errorf("%s reaches %s over %s in a closed site", from, to, proto)
				}
			}
		}
	}

	nodetest.Reconfigure(ctx, t, n, map[string]any{"sites": l.SitesOf(n)})
	nodetest.Meet(ctx, t, pods[0], pods[1])
	talk(ctx, t, pods[0], pods[1])
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// A cluster with as many sites as it may have is one of nine clusters that are sites of each other.
// Pods of all of them talk encrypted.
func TestMostSitesTalkNodeToNode(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true, Sites: true,
		Nodes: cluster.MaxSites + 1})
	pods := nodetest.EchoPods(ctx, t, l)
	for i, p := range pods {
		for _, other := range pods[i+1:] {
			nodetest.Meet(ctx, t, p, other)
		}
		if i > 0 {
			talk(ctx, t, pods[0], p)
		}
		s := nodetest.NodeStatus(ctx, t, p.Node)
		if len(s.Sites) != cluster.MaxSites || len(s.Peers) != cluster.MaxSites ||
			len(s.Refused) > 0 {
			t.Errorf("%s: sites %+v, peers %+v, refused %+v", p.Node.Name, s.Sites, s.Peers,
				s.Refused)
		}
	}
	nodetest.NoLeaks(t, l)
}

var siteNodes = schema.GroupVersionResource{Group: object.VeilNodeGroup,
	Version: object.VeilNodeVersion, Resource: object.SiteNodeResource}

// siteNode returns a SiteNode with an address, a pod prefix and a key.
func siteNode(name, addr, prefix string, key wgkey.Public) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": siteNodes.GroupVersion().String(), "kind": object.SiteNodeKind,
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"addresses": []any{addr}, "podPrefixes": []any{prefix},
			"endpoints": []any{addr + ":51820"},
			"keys":      []any{map[string]any{"epoch": int64(0), "publicKey": key.String()}}},
	}}
}

// SiteNodes at an API server are peers inside the ranges of their site. One with a key or a prefix
// of this cluster is refused, and the nodes of this cluster keep theirs.
func TestForgedSiteNodesAreRefused(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{VeildConfig: map[string]any{
		"nodeRanges": nodeNetworks(lab.Dual), "sites": []cluster.Site{{Name: "b",
			Reach: cluster.ReachAll, PodRanges: nettest.Prefixes("198.18.80.0/20"),
			NodeRanges: nettest.Prefixes("198.18.9.0/24")}}}})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	victim := nodetest.NodeStatus(ctx, t, n2).Devices[0].PublicKey

	// The honest node does not exist. Handshakes with it are datagrams between nodes.
	l.Oracle.Update(func(r *leak.Rules) {
		r.Nodes = append(r.Nodes, netip.MustParseAddr("198.18.9.1"))
	})

	write := l.Control.Dynamic.Resource(siteNodes)
	all := []*unstructured.Unstructured{
		siteNode("b.honest", "198.18.9.1", "198.18.80.0/24", wgkey.Public{31: 1}),
		siteNode("b.key", "198.18.9.2", "198.18.81.0/24", victim),
		siteNode("b.prefix", "198.18.9.3", n2.PodPrefixes[0].String(), wgkey.Public{31: 2}),
		siteNode("b.address", n2.Addrs[0].String(), "198.18.82.0/24", wgkey.Public{31: 3}),
		siteNode("c.node", "198.18.9.4", "198.18.83.0/24", wgkey.Public{31: 4}),
	}
	for _, o := range all {
		if _, err := write.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	malformed := siteNode("b.malformed", "example", "198.18.84.0/24", wgkey.Public{31: 5})
	if _, err := write.Create(ctx, malformed, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("the API server takes a name as an address: %v", err)
	}

	nodetest.WaitStatus(ctx, t, n1, 20*time.Second, func(s telemetry.Status) error {
		refused := map[string]string{}
		for _, r := range s.Refused {
			refused[r.Node] += r.Reason
		}
		if s.Sites[0].Nodes != 1 || !strings.Contains(refused["b/key"], "is a node of this cluster") &&
			!strings.Contains(refused["b/key"], "is this node itself") ||
			!strings.Contains(refused["b/prefix"], "outside of podRanges") ||
			!strings.Contains(refused["b/address"], "outside of nodeRanges") ||
			!strings.Contains(strings.Join(s.Problems, "\n"), "1 belong to sites that are not open") {
			return fmt.Errorf("sites %+v, refused %v, problems %q", s.Sites, refused, s.Problems)
		}
		return nil
	})
	talk(ctx, t, pods[0], pods[1])

	stolen, err := dynamic.NewForConfig(nodetest.ConfigAs(l, nodetest.StolenToken(t, n1)))
	errtest.Must(t, err)
	mine := siteNode("b.mine", "198.18.9.5", "198.18.85.0/24", wgkey.Public{31: 6})
	if _, err := stolen.Resource(siteNodes).Create(ctx, mine,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the token of a node writes a SiteNode: %v", err)
	}

	for _, o := range all {
		errtest.Must(t, write.Delete(ctx, o.GetName(), metav1.DeleteOptions{}))
	}
	nodetest.WaitStatus(ctx, t, n1, 20*time.Second, func(s telemetry.Status) error {
		if s.Sites[0].Nodes != 0 || len(s.Refused) > 0 {
			return fmt.Errorf("sites %+v, refused %+v", s.Sites, s.Refused)
		}
		return nil
	})
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}
