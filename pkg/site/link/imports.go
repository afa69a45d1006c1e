package link

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/site/inventory"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// writeImports writes the objects of each import, and deletes the objects of others. It returns
// sentences about objects of others that have a needed name, by the clusters of the import.
func (l *Linker) writeImports(ctx context.Context, w *writer, now inventory.State,
	out mirror.Output) (foreign map[string][]string) {
	foreign = map[string][]string{}
	wanted := map[record.Key]bool{} // derived Services and EndpointSlices
	for k := range w.inTurn("imports", sortedKeys(out.Imports), func(k record.Key) string {
		return payerOfImport(sourcesOf(out.Imports[k]))
	}) {
		m := out.Imports[k]
		derived := record.Key{Namespace: k.Namespace, Name: mirror.DerivedName(k.Name)}
		problem := ""
		if i, exists := now.Imports[k]; exists && !i.Ours {
			problem = fmt.Sprintf("import %s has a ServiceImport that veil-site did not write: "+
				"delete it", k)
		} else if s, exists := now.Services[derived]; exists && !s.Ours {
			problem = fmt.Sprintf("import %s needs the name of the Service %s: delete that", k,
				derived)
		}
		if problem != "" {
			for _, s := range m.Sources {
				foreign[s.Cluster] = append(foreign[s.Cluster], problem)
			}
			continue
		}

		wanted[derived] = true
		l.writeImport(ctx, w, now, k, m)
		l.writeDerived(ctx, w, now, k, m)
		for _, s := range m.EndpointSlices(k) {
			name := record.Key{Namespace: s.Namespace, Name: s.Name}
			wanted[name] = true
			l.writeSlice(ctx, w, now, name, s)
		}
	}

	l.removeImports(ctx, w, now, out, wanted)
	return foreign
}

// removeImports deletes the objects of imports that are not wanted any more.
func (l *Linker) removeImports(ctx context.Context, w *writer, now inventory.State, out mirror.Output,
	wanted map[record.Key]bool) {
	payers := payersOfDerived(now.Imports)
	for k := range w.inTurn("slices", sortedKeys(now.Slices), func(k record.Key) string {
		return removalsOf(payers[record.Key{Namespace: k.Namespace, Name: now.Slices[k].Service}])
	}) {
		s := now.Slices[k]
		if s.Ours && !wanted[k] {
			w.remove(ctx, object.AllSlices, k, s.Version)
		}
	}
	for k := range w.inTurn("services", sortedKeys(now.Services), func(k record.Key) string {
		return removalsOf(payers[k])
	}) {
		if s := now.Services[k]; s.Ours && !wanted[k] {
			w.remove(ctx, object.AllServices, k, s.Version)
		}
	}

	for k := range w.inTurn("imports", sortedKeys(now.Imports), func(k record.Key) string {
		return removalsOf(payerOfImport(slices.Collect(maps.Keys(now.Imports[k].First))))
	}) {
		i := now.Imports[k]
		if i.Ours && out.Imports[k] == nil {
			w.remove(ctx, object.ServiceImports, k, i.Version)
		}
	}
}

// writeImport writes a ServiceImport, and then its status.
func (l *Linker) writeImport(ctx context.Context, w *writer, now inventory.State, k record.Key,
	m *mirror.Import) {
	var ips []string
	derived, exists := now.Services[record.Key{Namespace: k.Namespace,
		Name: mirror.DerivedName(k.Name)}]
	if exists && derived.Spec.ClusterIP != corev1.ClusterIPNone {
		ips = derived.Spec.ClusterIPs
	}
	want, err := m.ServiceImport(k, ips)
	if err != nil {
		w.note("encode", object.ServiceImports, k, err)
		return
	}

	has := now.Imports[k]
	want.ResourceVersion = has.Version
	if has.Version == "" || !equality.Semantic.DeepEqual(has.Object.Spec, want.Spec) ||
		!mirror.SameMeta(has.Object, *want) {
		w.put(ctx, object.ServiceImports, k, has.Version, want)
		return // the status follows in the next round
	}

	ready := metav1.Condition{Type: string(mcs.ServiceImportConditionReady),
		Status: metav1.ConditionTrue, Reason: string(mcs.ServiceImportReasonReady),
		Message: "the derived Service is " + mirror.DerivedName(k.Name)}
	if len(ips) == 0 && !m.Service.Headless {
		ready.Status, ready.Reason = metav1.ConditionFalse, string(mcs.ServiceImportReasonPending)
		ready.Message = "the derived Service has no cluster IP yet"
	}
	conditions, changed := withConditions(has.Object.Status.Conditions, ready)
	want.Status.Conditions = conditions
	if changed || !equality.Semantic.DeepEqual(has.Object.Status.Clusters, want.Status.Clusters) ||
		has.Object.Status.EndpointSliceObjects != want.Status.EndpointSliceObjects {
		w.putStatus(ctx, object.ServiceImports, k, want)
	}
}

// writeDerived writes the derived Service. Whether a Service is headless cannot be changed, so it
// is deleted then, and created in the next round.
func (l *Linker) writeDerived(ctx context.Context, w *writer, now inventory.State, k record.Key,
	m *mirror.Import) {
	want := m.Derived(k)
	name := record.Key{Namespace: want.Namespace, Name: want.Name}
	has, exists := now.Services[name]
	if !exists {
		w.put(ctx, object.AllServices, name, "", want)
		return
	}
	if (has.Spec.ClusterIP == corev1.ClusterIPNone) != m.Service.Headless {
		w.remove(ctx, object.AllServices, name, has.Version)
		return
	}
	if sameService(has.Spec, want.Spec) {
		return
	}
	want.ResourceVersion = has.Version
	want.Spec.ClusterIP, want.Spec.ClusterIPs = has.Spec.ClusterIP, has.Spec.ClusterIPs
	want.Spec.IPFamilies = has.Spec.IPFamilies
	w.put(ctx, object.AllServices, name, has.Version, want)
}

// sameService reports whether a derived Service has the settings of want. The API server adds
// others.
func sameService(has, want corev1.ServiceSpec) bool {
	if len(has.Selector) > 0 || len(has.ExternalIPs) > 0 ||
		has.Type != corev1.ServiceTypeClusterIP ||
		has.IPFamilyPolicy == nil || *has.IPFamilyPolicy != *want.IPFamilyPolicy ||
		(has.SessionAffinity == corev1.ServiceAffinityClientIP) !=
			(want.SessionAffinity == corev1.ServiceAffinityClientIP) ||
		!equality.Semantic.DeepEqual(has.InternalTrafficPolicy, want.InternalTrafficPolicy) ||
		!equality.Semantic.DeepEqual(has.SessionAffinityConfig, want.SessionAffinityConfig) {
		return false
	}
	return slices.EqualFunc(has.Ports, want.Ports, func(a, b corev1.ServicePort) bool {
		return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port &&
			equality.Semantic.DeepEqual(a.AppProtocol, b.AppProtocol)
	})
}

func (l *Linker) writeSlice(ctx context.Context, w *writer, now inventory.State, k record.Key,
	want *discoveryv1.EndpointSlice) {
	has, exists := now.Slices[k]
	if exists && !has.Ours {
		w.failed["EndpointSlice "+k.String()] = "veil-site did not write it: delete it"
		return
	}
	if exists && has.Slice.AddressType != want.AddressType {
		w.remove(ctx, object.AllSlices, k, has.Version)
		return
	}
	if exists && equality.Semantic.DeepEqual(has.Slice.Labels, want.Labels) &&
		equality.Semantic.DeepEqual(has.Slice.Endpoints, want.Endpoints) &&
		equality.Semantic.DeepEqual(has.Slice.Ports, want.Ports) {
		return
	}
	want.ResourceVersion = has.Version
	w.put(ctx, object.AllSlices, k, has.Version, want)
}
