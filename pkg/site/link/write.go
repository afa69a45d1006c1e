package link

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/site/inventory"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/publish"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// writer sends the writes of one round within its budget, and keeps what failed.
type writer struct {
	*budget
	server  *api.Server
	timeout time.Duration
	beat    func()            // after each request
	written int               // requests that succeeded
	failed  map[string]string // by kind and name
	refused bool              // a request failed, and not because its object changed meanwhile
	payer   string            // of the next writes
	// resume and ended hold, by kind and payer, the key at which the budget of the last round and
	// of this one ended.
	resume, ended map[string]string
}

// newWriter returns the writer of a round.
func (l *Linker) newWriter() *writer {
	l.rounds++
	return &writer{budget: newBudget(len(l.Sites)), server: l.server, timeout: l.times.request,
		beat: l.Beat, failed: map[string]string{}, resume: l.resume, ended: map[string]string{}}
}

// note keeps an error. An object that changed meanwhile does not count: a watch reports the change,
// and the next round compares again. It reports whether there was no error.
func (w *writer) note(verb string, k object.Kind, name record.Key, err error) bool {
	w.beat()
	if err == nil {
		w.written++
		return true
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		w.refused = true
		w.failed[k.Kind+" "+name.String()] = api.Explain(verb, k, err).Error()
	}
	return false
}

func of(k object.Kind, namespace string) object.Kind {
	if namespace == "" {
		return k
	}
	return k.In(namespace)
}

// put creates an object, or replaces the one that has this version. o has the version, too.
func (w *writer) put(ctx context.Context, k object.Kind, name record.Key, version string,
	o any) bool {
	if !w.spend(w.payer) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	if version == "" {
		return w.note("create", k, name, w.server.Create(ctx, of(k, name.Namespace), o))
	}
	return w.note("update", k, name, w.server.Replace(ctx, of(k, name.Namespace), name.Name, o))
}

// putStatus replaces the status of an object.
func (w *writer) putStatus(ctx context.Context, k object.Kind, name record.Key, o any) bool {
	if !w.spend(w.payer) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	return w.note("update status of", k, name,
		w.server.Replace(ctx, of(k, name.Namespace), name.Name+"/status", o))
}

// remove deletes the object that has this version. An object that is gone already does not count as
// one.
func (w *writer) remove(ctx context.Context, k object.Kind, name record.Key, version string) bool {
	if !w.spend(w.payer) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	err := w.server.Delete(ctx, of(k, name.Namespace), name.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return w.note("delete", k, name, err)
}

// custom returns an object of a kind of Kubeveil.
func custom(kind string, name record.Key, version string) *object.Object {
	return &object.Object{TypeMeta: metav1.TypeMeta{Kind: kind,
		APIVersion: object.VeilNodeGroup + "/" + object.VeilNodeVersion},
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name,
			ResourceVersion: version,
			Labels:          map[string]string{mirror.ManagedByLabel: mirror.ManagedBy}}}
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[T any](m map[record.Key]T) []record.Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b record.Key) int {
		return strings.Compare(a.String(), b.String())
	})
}

// writeRecords writes the SiteRecords of each site: the head last, and only if no other failed.
func (l *Linker) writeRecords(ctx context.Context, w *writer, now inventory.State,
	stated map[string]publish.Stated) {
	payer := func(k record.Key) string {
		return payerOfRecords(strings.TrimPrefix(k.Namespace, NamespacePrefix))
	}
	missing := map[string]int{} // writes that failed or were postponed, by namespace
	for site, s := range stated {
		namespace := NamespacePrefix + site
		if _, exists := now.Namespaces[record.Key{Name: namespace}]; !exists {
			continue
		}
		var keys []record.Key
		for _, name := range slices.Sorted(maps.Keys(s.Records)) {
			if name != record.NameHead {
				keys = append(keys, record.Key{Namespace: namespace, Name: name})
			}
		}
		for k := range w.inTurn("records", keys, payer) {
			if !l.writeRecord(ctx, w, now, k, s.Records[k.Name]) {
				missing[namespace]++
			}
		}
	}

	for k := range w.inTurn("records", sortedKeys(now.Records), func(k record.Key) string {
		return removalsOf(payer(k))
	}) {
		site, mine := strings.CutPrefix(k.Namespace, NamespacePrefix)
		if mine && stated[site].Records[k.Name] == nil &&
			!w.remove(ctx, object.SiteRecords, k, now.Records[k].Version) {
			missing[k.Namespace]++
		}
	}
	for site, s := range stated {
		k := record.Key{Namespace: NamespacePrefix + site, Name: record.NameHead}
		if _, exists := now.Namespaces[record.Key{Name: k.Namespace}]; exists {
			l.writeHead(ctx, w, now, k, s.Records[k.Name], missing[k.Namespace])
		}
	}
}

// writeHead writes the head of a site, unless one of the missing writes failed. If all were
// postponed, its digest has the number of the round, so that a site reads what was written, and
// again what follows. The head has a budget of its own.
func (l *Linker) writeHead(ctx context.Context, w *writer, now inventory.State, k record.Key,
	spec []byte, missing int) {
	p := payerOfRecords(strings.TrimPrefix(k.Namespace, NamespacePrefix))
	if missing > w.postponed[p]+w.postponed[removalsOf(p)] {
		return
	}
	if missing > 0 {
		r, err := record.Decode(k.Name, spec)
		if err == nil {
			r.Head.Digest = fmt.Sprintf("%s-%d", r.Head.Digest, l.rounds)
			spec, err = record.Encode(k.Name, record.Spec{Head: r.Head})
		}
		if err != nil {
			w.note("encode", object.SiteRecords, k, err)
			return
		}
	}
	w.payer = "head " + p
	l.writeRecord(ctx, w, now, k, spec)
}

// writeRecord writes a SiteRecord if it differs, and reports whether it is as it must be.
func (l *Linker) writeRecord(ctx context.Context, w *writer, now inventory.State, k record.Key,
	spec []byte) bool {
	has := now.Records[k]
	if has.Version != "" && has.Raw == inventory.Canonical(spec) {
		return true
	}
	o := custom(object.SiteRecordKind, k, has.Version)
	o.Spec = spec
	return w.put(ctx, object.SiteRecords, k, has.Version, o)
}

// writeNodes writes the SiteNodes that sites state, and deletes the others, except for those of
// sites that are kept.
func (l *Linker) writeNodes(ctx context.Context, w *writer, now inventory.State,
	out mirror.Output) {
	payer := func(k record.Key) string {
		site, _, _ := strings.Cut(k.Name, ".")
		return payerOfNodes(site)
	}
	for k := range w.inTurn("nodes", sortedKeys(now.SiteNodes), func(k record.Key) string {
		return removalsOf(payer(k))
	}) {
		site, _, _ := strings.Cut(k.Name, ".")
		if out.Nodes[k.Name] == nil && !out.Kept[site] {
			w.remove(ctx, object.SiteNodes, k, now.SiteNodes[k].Version)
		}
	}

	var keys []record.Key
	for _, name := range slices.Sorted(maps.Keys(out.Nodes)) {
		keys = append(keys, record.Key{Name: name})
	}
	for k := range w.inTurn("nodes", keys, payer) {
		has := now.SiteNodes[k]
		if has.Version != "" && has.Raw == inventory.Canonical(out.Nodes[k.Name]) {
			continue
		}
		o := custom(object.SiteNodeKind, k, has.Version)
		o.Spec = out.Nodes[k.Name]
		w.put(ctx, object.SiteNodes, k, has.Version, o)
	}
}

// statusOf returns an object of a kind of Kubeveil with a status, or nil if it has it already.
func statusOf(kind string, k record.Key, has inventory.Raw, status any) (*object.Object, error) {
	raw, err := json.Marshal(status)
	if err != nil {
		return nil, fmt.Errorf("encode status of %s %s: %w", kind, k, err)
	}
	if inventory.Canonical(raw) == has.Raw {
		return nil, nil
	}
	o := custom(kind, k, has.Version)
	o.Status = raw
	return o, nil
}
