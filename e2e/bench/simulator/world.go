package simulator

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/e2e/scale/servicenode"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
)

// world is what the kernel of the node has, or must have.
type world struct {
	services servicenode.Content
	// peers holds the prefixes of each peer of the tunnel, by its public key.
	peers map[string]string
	// routes are the destinations of routes into the tunnel, sorted.
	routes []string
}

// differs returns how w differs from what it must be, or "".
func (w world) differs(want world) string {
	for key, prefixes := range want.peers {
		if got, has := w.peers[key]; !has || got != prefixes {
			return fmt.Sprintf("peer %s has %q, want %q", key, got, prefixes)
		}
	}
	if len(w.peers) != len(want.peers) {
		return fmt.Sprintf("%d peers, want %d", len(w.peers), len(want.peers))
	}
	if !slices.Equal(w.routes, want.routes) {
		return fmt.Sprintf("%d routes into the tunnel, want %d, or others", len(w.routes),
			len(want.routes))
	}
	return w.services.Differs(want.services)
}

// source reads what the API server has, and returns what the kernel of a node must have. It leaves
// out the nodes whose names are in except.
func (s *run) source(ctx context.Context, node *lab.Node, except ...string) (w world, err error) {
	config := rest.CopyConfig(s.lab.Control.Config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return w, err
	}
	services, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return w, err
	}
	all, err := client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return w, err
	}
	w.services = servicenode.Want(pointers[corev1.Service](services.Items),
		pointers[discoveryv1.EndpointSlice](all.Items))

	nodes, err := s.others(ctx, client, append(except, node.Name))
	if err != nil {
		return w, err
	}
	w.peers, w.routes = map[string]string{}, []string{serviceRange}
	for _, n := range nodes {
		key, _ := n.NewestKey()
		w.peers[key.Public.String()] = joined(n.AllowedIPs())
		for _, p := range n.PodPrefixes {
			w.routes = append(w.routes, p.String())
		}
	}
	slices.Sort(w.routes)
	return w, nil
}

// others returns the nodes that have a Node and a VeilNode, but for those in except.
func (s *run) others(ctx context.Context, client kubernetes.Interface,
	except []string) (all []cluster.Node, err error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	byName := map[string]cluster.Node{}
	for _, o := range list.Items {
		n := cluster.Node{Name: o.Name}
		for _, a := range o.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				n.Addresses = append(n.Addresses, netip.MustParseAddr(a.Address))
			}
		}
		for _, text := range o.Spec.PodCIDRs {
			n.PodPrefixes = append(n.PodPrefixes, netip.MustParsePrefix(text))
		}
		byName[o.Name] = n
	}

	claims, err := s.lab.Control.Dynamic.Resource(apiobject.VeilNodes).List(ctx,
		metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range claims.Items {
		n, has := byName[o.GetName()]
		if !has || slices.Contains(except, o.GetName()) {
			continue
		}
		text, err := json.Marshal(o.Object["spec"])
		if err != nil {
			return nil, err
		}
		if n.Claim, err = veilnode.Decode(text); err != nil {
			return nil, fmt.Errorf("VeilNode %s: %w", n.Name, err)
		}
		all = append(all, n)
	}
	return all, nil
}

// kernel reads what the kernel of a node has.
func kernel(ctx context.Context, node *lab.Node) (w world, err error) {
	if w.services, err = servicenode.Read(node.Path(abi.BPFDir)); err != nil {
		return w, err
	}

	const device = abi.TunnelDevicePrefix + "0"
	out, err := node.Exec(ctx, "wg", "show", device, "allowed-ips")
	if err != nil {
		return w, err
	}
	w.peers = map[string]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		var prefixes []netip.Prefix
		for _, text := range words[1:] {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return w, fmt.Errorf("wg: %w", err)
			}
			prefixes = append(prefixes, p)
		}
		slices.SortFunc(prefixes, netip.Prefix.Compare)
		w.peers[words[0]] = joined(prefixes)
	}

	out, err = node.Exec(ctx, "ip", "-4", "-o", "route", "show", "table", "main", "dev", device)
	if err != nil {
		return w, err
	}
	routes := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		routes[strings.Fields(line)[0]] = true
	}
	w.routes = slices.Sorted(maps.Keys(routes))
	return w, nil
}

func joined(prefixes []netip.Prefix) string {
	words := make([]string, len(prefixes))
	for i, p := range prefixes {
		words[i] = p.String()
	}
	return strings.Join(words, " ")
}

func pointers[T any](all []T) []*T {
	out := make([]*T, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out
}
