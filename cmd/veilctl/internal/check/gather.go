package check

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/preflight"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// atOnce bounds the concurrent requests of Gather.
const atOnce = 8

// gatherer fills in Facts. Its parts are independent and run concurrently.
type gatherer struct {
	*remote.Cluster
	mu    sync.Mutex // guards the fields below
	facts preflight.Facts
	// servers are the endpoints of the service default/kubernetes.
	servers []netip.AddrPort
}

// Gather reads the facts that preflight judges, and changes nothing. Facts.Unread holds the facts
// that could not be read. If file is not empty, text is the content of this configuration file and
// replaces the cluster's configuration.
func Gather(ctx context.Context, k *remote.Cluster, file string, text []byte) preflight.Facts {
	g := &gatherer{Cluster: k, facts: preflight.Facts{
		Server: preflight.Server{Address: k.Server}, Unread: map[string]string{},
		Config: preflight.Config, ConfigFrom: "the manifests",
	}}
	if err := g.server(); err != nil {
		g.facts.Server.Err = err.Error()
		return g.facts
	}

	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, part := range []struct {
		what string
		read func(context.Context) error
	}{
		{"rights", g.rights},
		{"kubeadm-config", g.kubeadm},
		{"way to the API server", g.proxy},
		{"pod security", g.podSecurity},
		{"nodes", g.nodes},
		{"API servers", g.apiServers},
		{"DaemonSets", g.daemonSets},
		{"pods", g.pods},
		{"controller manager", g.controller},
		{"API servers' flags", g.staticServers},
		{"Kubeveil", g.present},
		{"configuration", g.config},
	} {
		group.Go(func() error {
			if err := part.read(ctx); err != nil {
				g.put(func(f *preflight.Facts) { f.Unread[part.what] = err.Error() })
			}
			return nil
		})
	}

	_ = group.Wait() // no part returns an error
	if file != "" {
		g.facts.Config, g.facts.ConfigFrom = string(text), file
	}
	g.certificates(ctx)
	return g.facts
}

func (g *gatherer) put(change func(f *preflight.Facts)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.facts)
}

func (g *gatherer) server() error {
	v, err := g.Client.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	g.facts.Server.Version = v.GitVersion
	groups, err := g.Client.Discovery().ServerGroups()
	if err != nil {
		return err
	}
	for _, group := range groups.Groups {
		g.facts.Groups = append(g.facts.Groups, group.Name)
	}
	list, err := g.Client.Discovery().ServerResourcesForGroupVersion(
		"admissionregistration.k8s.io/v1")
	if err != nil {
		return err
	}
	for _, r := range list.APIResources {
		g.facts.Server.Policies = g.facts.Server.Policies || r.Name == "validatingadmissionpolicies"
	}
	return nil
}

// rights reads the user's rights from the API server. Reading one's own rights needs no right.
func (g *gatherer) rights(ctx context.Context) error {
	denied, err := g.lacking(ctx, preflight.Needed())
	if err != nil {
		return err
	}
	ungiven, err := g.lacking(ctx, preflight.Granted())
	if err != nil {
		return err
	}
	escalating, err := g.lacking(ctx, preflight.Escalating())
	g.put(func(f *preflight.Facts) {
		f.Denied, f.Ungiven, f.Escalate = denied, ungiven, len(escalating) == 0
	})
	return err
}

func (g *gatherer) lacking(ctx context.Context,
	rights []preflight.Right) ([]preflight.Right, error) {
	may := make([]bool, len(rights))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)

	for i, r := range rights {
		group.Go(func() error {
			review := &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{
					ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: r.Verb,
						Group: r.Group, Resource: r.Resource, Namespace: r.Namespace, Name: r.Name},
				}}
			answer, err := g.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review,
				metav1.CreateOptions{})
			if err == nil {
				may[i] = answer.Status.Allowed
			}
			return err
		})
	}

	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("ask for your rights: %w", err)
	}

	var out []preflight.Right
	for i, r := range rights {
		if !may[i] {
			out = append(out, r)
		}
	}

	return out, nil
}

// configMap returns the value of a key of a ConfigMap in kube-system, or nil if the ConfigMap does
// not exist.
func (g *gatherer) configMap(ctx context.Context, name, key string) ([]byte, error) {
	m, err := g.Client.CoreV1().ConfigMaps(remote.SystemNamespace).Get(ctx, name,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if text, ok := m.Data[key]; ok {
		return []byte(text), nil
	}
	return nil, nil
}

func (g *gatherer) kubeadm(ctx context.Context) error {
	text, err := g.configMap(ctx, "kubeadm-config", "ClusterConfiguration")
	g.put(func(f *preflight.Facts) { f.Kubeadm = text })
	return err
}

func (g *gatherer) proxy(ctx context.Context) error {
	text, err := g.configMap(ctx, "kube-proxy", "kubeconfig.conf")
	g.put(func(f *preflight.Facts) { f.Proxy = text })
	return err
}

func (g *gatherer) config(ctx context.Context) error {
	text, err := g.configMap(ctx, "kubeveil", "veild.yaml")
	if text != nil {
		g.put(func(f *preflight.Facts) {
			f.Config, f.ConfigFrom = string(text), "the cluster's ConfigMap kubeveil"
		})
	}
	return err
}

func (g *gatherer) podSecurity(ctx context.Context) error {
	n, err := g.Client.CoreV1().Namespaces().Get(ctx, remote.SystemNamespace, metav1.GetOptions{})
	if err == nil {
		g.put(func(f *preflight.Facts) {
			f.PodSecurity = n.Labels["pod-security.kubernetes.io/enforce"]
		})
	}
	return err
}

func (g *gatherer) nodes(ctx context.Context) error {
	list, err := g.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	mtus := map[string]int{}
	claims, err := cluster.Claims(ctx, g.Cluster)
	for name, raw := range claims {
		if c, err := veilnode.Decode(raw); err == nil {
			mtus[name] = c.MTU
		}
	}
	if err != nil {
		mtus = nil // not installed or not readable, so the MTU is unknown
	}
	g.put(func(f *preflight.Facts) {
		for _, n := range list.Items {
			f.Nodes = append(f.Nodes, nodeFacts(n, mtus[n.Name]))
		}
	})
	return nil
}

func nodeFacts(n corev1.Node, mtu int) preflight.NodeFacts {
	_, controlPlane := n.Labels["node-role.kubernetes.io/control-plane"]
	info := n.Status.NodeInfo
	out := preflight.NodeFacts{
		Name: n.Name, Created: n.CreationTimestamp.UTC(), ControlPlane: controlPlane,
		OS:      n.Labels[corev1.LabelOSStable],
		Arch:    remote.Printable(info.Architecture),
		Kernel:  remote.Printable(info.KernelVersion),
		Runtime: remote.Printable(info.ContainerRuntimeVersion),
		Kubelet: remote.Printable(info.KubeletVersion), MTU: mtu,
		Ready: cluster.NodeProblem(n) == "",
	}
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			out.Addresses = append(out.Addresses, addr.Unmap())
		}
	}
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out.PodCIDRs = append(out.PodCIDRs, p)
		}
	}
	for key := range n.Annotations {
		out.Annotations = append(out.Annotations, key)
	}
	return out
}

func (g *gatherer) daemonSets(ctx context.Context) error {
	list, err := g.Client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	g.put(func(f *preflight.Facts) {
		for _, ds := range list.Items {
			f.DaemonSets = append(f.DaemonSets, ds.Namespace+"/"+ds.Name)
			f.Cleaning = f.Cleaning || ds.Namespace == remote.SystemNamespace &&
				ds.Name == "kubeveil-cleanup"
			if ds.Namespace == remote.SystemNamespace && (ds.Name == "veild" ||
				ds.Name == "veil-wg") {
				f.Daemons = append(f.Daemons, preflight.Daemon{
					Name: ds.Name, Image: ds.Spec.Template.Spec.Containers[0].Image,
					Desired: int(ds.Status.DesiredNumberScheduled),
					Ready:   int(ds.Status.NumberReady),
				})
			}
		}
	})
	return nil
}

func (g *gatherer) pods(ctx context.Context) error {
	const some = 500 // enough to find pods of another network plugin
	list, err := g.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{Limit: some})
	if err != nil {
		return err
	}
	g.put(func(f *preflight.Facts) {
		f.PodAddrs = map[string]netip.Addr{}
		for _, p := range list.Items {
			if a, err := netip.ParseAddr(p.Status.PodIP); err == nil && !p.Spec.HostNetwork &&
				p.Status.Phase == corev1.PodRunning {
				f.PodAddrs[p.Namespace+"/"+p.Name] = a
			}
		}
	})
	return nil
}

// controller reads kube-controller-manager's pods by the label that kubeadm sets.
func (g *gatherer) controller(ctx context.Context) error {
	list, err := g.Client.CoreV1().Pods(remote.SystemNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: "component=kube-controller-manager"})
	if err != nil || len(list.Items) == 0 {
		return err
	}
	c := preflight.Controller{Seen: true}
	for _, container := range list.Items[0].Spec.Containers {
		for _, arg := range append(container.Command, container.Args...) {
			name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			switch name {
			case "allocate-node-cidrs":
				c.Allocates = value == "" || value == "true"
			case "cluster-cidr":
				c.ClusterCIDR = value
			}
		}
	}
	g.put(func(f *preflight.Facts) { f.Controller = c })
	return nil
}

// present reads which objects of the manifests exist, by their names.
func (g *gatherer) present(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, o := range preflight.Manifests {
		group.Go(func() error {
			resource := schema.GroupVersionResource{Group: o.Group, Version: "v1",
				Resource: o.Resource}
			found, err := g.Dynamic.Resource(resource).Namespace(o.Namespace).Get(ctx, o.Name,
				metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("look for %s %s: %w", o.Resource, o.Name, err)
			}
			g.put(func(f *preflight.Facts) {
				f.Objects = append(f.Objects, o)
				if o.Resource == "customresourcedefinitions" {
					f.Definition = definitionFacts(found)
				}
			})
			return nil
		})
	}
	return group.Wait()
}

func definitionFacts(o *unstructured.Unstructured) *preflight.Definition {
	d := &preflight.Definition{Leaving: o.GetDeletionTimestamp() != nil}
	versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
	for _, v := range versions {
		if m, ok := v.(map[string]any); ok && m["served"] == true {
			d.Versions = append(d.Versions, fmt.Sprint(m["name"]))
		}
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Established" {
			d.Established = m["status"] == "True"
		}
	}
	return d
}
