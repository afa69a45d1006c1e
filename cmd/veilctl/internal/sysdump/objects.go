package sysdump

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// ours selects Kubeveil's own objects.
const ours = "app.kubernetes.io/name=kubeveil"

const siteLinks = "sitelinks"

// dumpedObjects holds the objects of a sysdump. Each element becomes a file. Secrets must not be
// added.
var dumpedObjects = []struct {
	file                     string
	group, version, resource string
	namespace, labels, named string
}{
	{"nodes", "", "v1", "nodes", "", "", ""},
	{"veilnodes", veilnode.Group, veilnode.Version, veilnode.Resource, "", "", ""},
	{"sitenodes", veilnode.Group, veilnode.Version, "sitenodes", "", "", ""},
	{siteLinks, veilnode.Group, veilnode.Version, siteLinks, "", "", ""},
	{"definition", "apiextensions.k8s.io", "v1", "customresourcedefinitions", "", "",
		"veilnodes.kubeveil.io"},
	{"policies", "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "", ours, ""},
	{"policybindings", "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings",
		"", ours, ""},
	{"clusterroles", "rbac.authorization.k8s.io", "v1", "clusterroles", "", ours, ""},
	{"clusterrolebindings", "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "", ours, ""},
	{"roles", "rbac.authorization.k8s.io", "v1", "roles", "default", ours, ""},
	{"rolebindings", "rbac.authorization.k8s.io", "v1", "rolebindings", "default", ours, ""},
	{"serviceaccounts", "", "v1", "serviceaccounts", remote.SystemNamespace, ours, ""},
	{"configmap-kubeveil", "", "v1", "configmaps", remote.SystemNamespace, "", "kubeveil"},
	{"configmap-kubeadm-config", "", "v1", "configmaps", remote.SystemNamespace, "",
		"kubeadm-config"},
	{"configmap-kube-proxy", "", "v1", "configmaps", remote.SystemNamespace, "", "kube-proxy"},
	{"daemonsets", "apps", "v1", "daemonsets", remote.SystemNamespace, "", ""},
	{"pods", "", "v1", "pods", remote.SystemNamespace, ours, ""},
	{"apiserver-endpoints", "discovery.k8s.io", "v1", "endpointslices", "default",
		"kubernetes.io/service-name=kubernetes", ""},
	{"apiserver-service", "", "v1", "services", "default", "", "kubernetes"},
}

func (d *dump) objects(ctx context.Context) {
	for _, o := range dumpedObjects {
		name := "cluster/" + o.file + ".yaml"
		resource := schema.GroupVersionResource{Group: o.group, Version: o.version,
			Resource: o.resource}
		options := metav1.ListOptions{LabelSelector: o.labels}
		if o.named != "" {
			options.FieldSelector = "metadata.name=" + o.named
		}
		list, err := d.cluster.Dynamic.Resource(resource).Namespace(o.namespace).List(ctx, options)
		if err != nil {
			d.lacks(name, err)
			continue
		}
		items := []any{}
		for _, item := range list.Items {
			plain := plainObject(item)
			if o.resource == siteLinks {
				withoutServices(plain)
			}
			items = append(items, plain)
		}
		d.object(name, "list "+resource.GroupResource().String(), items)
	}
	d.events(ctx)
	d.podTable(ctx)
}

// plainObject returns the content of o without managed fields and kubectl's last-applied
// annotation. It changes o.
func plainObject(o unstructured.Unstructured) map[string]any {
	o.SetManagedFields(nil)
	annotations := o.GetAnnotations()
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	o.SetAnnotations(annotations)
	return o.Object
}

// events adds the events of kube-system and of nodes, newest last.
func (d *dump) events(ctx context.Context) {
	const name = "cluster/events.txt"
	var rows []corev1.Event
	for _, namespace := range []string{remote.SystemNamespace, "default"} {
		list, err := d.cluster.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			d.lacks(name, fmt.Errorf("events of %s: %w", namespace, err))
			continue
		}
		for _, e := range list.Items {
			if namespace == remote.SystemNamespace || e.InvolvedObject.Kind == "Node" {
				rows = append(rows, e)
			}
		}
	}

	slices.SortFunc(rows, func(a, b corev1.Event) int {
		return cmp.Or(lastSeen(a).Compare(lastSeen(b)), cmp.Compare(a.Name, b.Name))
	})

	var lines [][]string
	for _, e := range rows {
		lines = append(lines, []string{lastSeen(e).UTC().Format(time.RFC3339),
			fmt.Sprint(max(e.Count, 1)), e.Type, e.Reason,
			e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name, strconv.Quote(e.Message)})
	}

	var b bytes.Buffer
	if err := verb.Table(&b, "LAST SEEN | TIMES | TYPE | REASON | OBJECT | MESSAGE",
		lines); err != nil {
		d.lacks(name, err)
		return
	}

	d.text(name, "list events", b.Bytes())
}

func lastSeen(e corev1.Event) time.Time {
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	if !e.EventTime.IsZero() {
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// podTable adds a table of the pods of kube-system, and the number of other pods per node.
func (d *dump) podTable(ctx context.Context) {
	const name = "cluster/pods.txt"
	list, err := d.cluster.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		d.lacks(name, err)
		return
	}

	others := map[string]int{}
	var rows [][]string
	for _, p := range list.Items {
		if p.Namespace != remote.SystemNamespace {
			others[p.Spec.NodeName]++
			continue
		}
		restarts := int32(0)
		for _, s := range p.Status.ContainerStatuses {
			restarts += s.RestartCount
		}
		rows = append(rows, []string{p.Name, verb.OrDash(p.Spec.NodeName), string(p.Status.Phase),
			verb.OrDash(p.Status.PodIP), fmt.Sprint(p.Spec.HostNetwork), fmt.Sprint(restarts),
			verb.OrDash(cluster.PodProblem(p))})
	}

	var b bytes.Buffer
	err = verb.Table(&b, "POD OF KUBE-SYSTEM | NODE | PHASE | ADDRESS | HOST NETWORK | RESTARTS "+
		"| PROBLEM", rows)
	fmt.Fprintln(&b)

	for _, n := range d.seen {
		fmt.Fprintf(&b, "%s: %d pods of other namespaces\n", n.Name, others[n.Name])
	}

	if err != nil {
		d.lacks(name, err)
		return
	}

	d.text(name, "list pods", b.Bytes())
}

// logs adds the logs of all containers of Kubeveil's pods, and of their previous runs.
func (d *dump) logs(ctx context.Context) {
	list, err := d.cluster.Client.CoreV1().Pods(remote.SystemNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: ours})
	if err != nil {
		d.lacks("logs", err)
		return
	}
	var g errgroup.Group
	g.SetLimit(dumped)
	for _, p := range list.Items {
		g.Go(func() error {
			for _, s := range slices.Concat(p.Status.InitContainerStatuses,
				p.Status.ContainerStatuses) {
				d.log(ctx, p, s.Name, false)
				if s.RestartCount > 0 {
					d.log(ctx, p, s.Name, true)
				}
			}
			return nil
		})
	}
	_ = g.Wait() // no log returns an error
}

func (d *dump) log(ctx context.Context, p corev1.Pod, container string, previous bool) {
	const lines, size = 20000, 8 << 20
	ctx, cancel := context.WithTimeout(ctx, dumpLimit)
	defer cancel()
	name := fmt.Sprintf("logs/%s/%s-%s", verb.OrDash(p.Spec.NodeName), p.Name, container)
	if previous {
		name += ".previous"
	}
	text, err := d.cluster.Client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
		Container: container, Previous: previous, Timestamps: true, TailLines: new(int64(lines)),
		LimitBytes: new(int64(size)),
	}).DoRaw(ctx)
	if err != nil {
		d.lacks(name+".log", err)
		return
	}
	d.text(name+".log", "log of "+p.Name, text)
}
