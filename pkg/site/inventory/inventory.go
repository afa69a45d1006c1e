package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/publish"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// Meta is the metadata of a stored object.
type Meta struct {
	// Version is the resource version. It is empty only in an object that does not exist.
	Version string
	// Ours reports whether veil-site wrote the object.
	Ours bool
}

// Stored objects of the own API server.
type (
	// Namespace is a Namespace. Ending reports whether it is being deleted: nothing can be created
	// in it.
	Namespace struct{ Ending bool }
	// Export is a ServiceExport.
	Export struct {
		Meta
		Created     time.Time
		Annotations map[string]string
		Conditions  []metav1.Condition
		// Copied are the labels and annotations for its import. NotCopied are sentences about
		// others, at most maxNotCopied.
		CopiedLabels, CopiedAnnotations map[string]string
		NotCopied                       []string
	}
	// Service is a Service. Spec is empty if only the name is needed.
	Service struct {
		Meta
		Spec corev1.ServiceSpec
	}
	// Slice is an EndpointSlice of the Service with a name.
	Slice struct {
		Meta
		Service string
		Slice   discoveryv1.EndpointSlice // AddressType, Endpoints, Ports and Labels are set
	}
	// Import is a ServiceImport. First and PreferLocal are fields of mirror.Existing.
	Import struct {
		Meta
		Object      mcs.ServiceImport // Labels, Annotations, Spec and Status are set
		First       map[string]time.Time
		PreferLocal bool
	}
	// Raw is an object of a kind of Kubeveil. Raw is its spec or status in the form of Canonical.
	Raw struct {
		Meta
		Raw string
	}
)

// Inventory holds what the own API server has, without Services that are neither exported nor our
// own. Make it with New, and call Run.
type Inventory struct {
	wanted     *wanted
	log        *slog.Logger
	nodes      *store[publish.OwnNode]
	veilNodes  *store[*cluster.Claim]
	namespaces *store[Namespace]
	exports    *store[Export]
	services   *store[Service]
	slices     *store[Slice]
	imports    *store[Import]
	siteNodes  *store[Raw]
	records    *store[Raw]
	links      *store[Raw]
}

// New returns an empty Inventory. changed is called after changes, and must not block.
func New(log *slog.Logger, changed func()) *Inventory {
	l := &Inventory{wanted: newWanted(), log: log,
		nodes: newStore(parseNode, changed), veilNodes: newStore(parseVeilNode, changed),
		namespaces: newStore(parseNamespace, changed),
		imports:    newStore(parseImport, changed), siteNodes: newStore(parseSpec, changed),
		records: newStore(parseSpec, changed), links: newStore(parseStatus, changed),
	}

	l.exports = newStore(parseExport, func() { l.exported(); changed() })
	l.services = newStore(func(o *object.Object) Service {
		_, whole := l.wanted.wantsService(o)
		return parseService(o, whole)
	}, changed)
	l.services.limits = &limits[Service]{wanted: l.wanted,
		kept:    func(o *object.Object) bool { kept, _ := l.wanted.wantsService(o); return kept },
		service: func(k record.Key, _ Service) record.Key { return k },
		weight:  func(Service) int { return 1 }}
	l.slices = newStore(func(o *object.Object) Slice {
		_, whole := l.wanted.wantsSlice(o)
		return parseSlice(o, whole)
	}, changed)
	l.slices.limits = &limits[Slice]{wanted: l.wanted,
		kept: func(o *object.Object) bool { kept, _ := l.wanted.wantsSlice(o); return kept },
		service: func(k record.Key, e Slice) record.Key {
			return record.Key{Namespace: k.Namespace, Name: e.Service}
		},
		weight: func(e Slice) int {
			if e.Ours { // Sites have bounds of their own.
				return 0
			}
			return 1 + len(e.Slice.Endpoints)
		}}
	return l
}

// exported makes the services of the ServiceExports wanted.
func (l *Inventory) exported() {
	exports, _ := l.exports.all()
	if l.wanted.set(exports) {
		l.services.forget(func(e Service) bool { return e.Ours })
		l.slices.forget(func(e Slice) bool { return e.Ours })
	}
}

// Run keeps the stores equal to the API server until ctx ends. Services and EndpointSlices are read
// once the ServiceExports are known.
func (l *Inventory) Run(ctx context.Context, s *api.Server) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.Reflect(ctx, object.Nodes, l.nodes) })
	wg.Go(func() { s.Reflect(ctx, object.VeilNodes, l.veilNodes) })
	wg.Go(func() { s.Reflect(ctx, object.AllNamespaces, l.namespaces) })
	wg.Go(func() { s.Reflect(ctx, object.ServiceExports, l.exports) })
	wg.Go(func() { s.Reflect(ctx, object.ServiceImports, l.imports) })
	wg.Go(func() { s.Reflect(ctx, object.SiteNodes, l.siteNodes) })
	wg.Go(func() { s.Reflect(ctx, object.SiteRecords, l.records) })
	wg.Go(func() { s.Reflect(ctx, object.SiteLinks, l.links) })

	select {
	case <-ctx.Done():
		return
	case <-l.exports.first:
	}
	l.wanted.begin()
	wg.Go(func() { s.Reflect(ctx, object.AllServices, l.services) })
	wg.Go(func() { s.Reflect(ctx, object.AllSlices, l.slices) })
	l.fetchAll(ctx, s)
}

// fetchAll reads the objects of services that became wanted, and of those that have room again,
// until ctx ends.
func (l *Inventory) fetchAll(ctx context.Context, s *api.Server) {
	var again <-chan time.Time
	failed := false
	room := time.NewTicker(lookForRoom)
	defer room.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-room.C:
			l.askForLeft()
			continue
		case <-l.wanted.wake:
		case <-again:
		}

		var problem error
		for k := range l.wanted.unreadNow() {
			if err := l.fetch(ctx, s, k); err != nil {
				problem = err
			}
		}
		if problem != nil && !failed && ctx.Err() == nil {
			l.log.Warn("an exported service cannot be read; it is tried again", "problem", problem)
		}
		if failed = problem != nil; failed {
			again = time.After(fetchAgain)
		}
	}
}

const (
	// fetchAgain is the time after which a service whose objects could not be read is read again.
	fetchAgain = 5 * time.Second
	// lookForRoom is the interval at which objects that were left out are looked for again, if their
	// namespace has room.
	lookForRoom = 10 * time.Second
)

// askForLeft makes services unread whose objects were left out and have room now.
func (l *Inventory) askForLeft() {
	l.wanted.ask(l.services.returning())
	l.wanted.ask(l.slices.returning())
}

// fetch reads a Service and its EndpointSlices.
func (l *Inventory) fetch(ctx context.Context, s *api.Server, k record.Key) error {
	services, parts := object.AllServices.In(k.Namespace), object.AllSlices.In(k.Namespace)
	services.Name, parts.Labels = k.Name, discoveryv1.LabelServiceName+"="+k.Name
	number := l.wanted.unreadNow()[k]
	err := errors.Join(l.services.read(ctx, s, services, k), l.slices.read(ctx, s, parts, k))
	if err == nil {
		l.wanted.done(k, number)
		l.services.changed()
	}
	return err
}

// State is the content of the stores at one moment, by namespace and name.
type State struct {
	Nodes      map[record.Key]publish.OwnNode
	VeilNodes  map[record.Key]*cluster.Claim
	Namespaces map[record.Key]Namespace
	Exports    map[record.Key]Export
	Services   map[record.Key]Service
	Slices     map[record.Key]Slice
	Imports    map[record.Key]Import
	SiteNodes  map[record.Key]Raw
	Records    map[record.Key]Raw
	Links      map[record.Key]Raw
	// Unread are exported services whose objects have not been read.
	Unread map[record.Key]uint64
	// Left counts Services and EndpointSlices that MaxWeight leaves out, up to MaxLeft of each in a
	// namespace. LeftMore reports whether there are more.
	Left     int
	LeftMore bool
}

// Read returns the content of the stores, and reports whether each kind has been listed. Nothing is
// written before, because a missing object and an object that is not read yet look alike.
func (l *Inventory) Read() (s State, complete bool) {
	var listed [10]bool
	s.Nodes, listed[0] = l.nodes.all()
	s.VeilNodes, listed[1] = l.veilNodes.all()
	s.Namespaces, listed[2] = l.namespaces.all()
	s.Exports, listed[3] = l.exports.all()
	s.Services, listed[4] = l.services.all()
	s.Slices, listed[5] = l.slices.all()
	s.Imports, listed[6] = l.imports.all()
	s.SiteNodes, listed[7] = l.siteNodes.all()
	s.Records, listed[8] = l.records.all()
	s.Links, listed[9] = l.links.all()
	s.Unread = l.wanted.unreadNow()
	services, moreServices := l.services.beyond()
	parts, moreParts := l.slices.beyond()
	s.Left, s.LeftMore = services+parts, moreServices || moreParts
	return s, !slices.Contains(listed[:], false)
}

func parseNamespace(o *object.Object) Namespace {
	return Namespace{Ending: !o.DeletionTimestamp.IsZero()}
}

func parseNode(o *object.Object) publish.OwnNode {
	n := publish.OwnNode{Name: o.Name, Created: o.CreationTimestamp.UTC()}
	w, _ := object.Node(o) // a malformed part is missing, so the node is not stated
	cidrs := w.PodCIDRs
	if len(cidrs) == 0 && w.PodCIDR != "" {
		cidrs = []string{w.PodCIDR}
	}
	for _, text := range cidrs {
		if p, err := object.ParsePrefix(text); err == nil {
			n.PodPrefixes = append(n.PodPrefixes, p)
		}
	}
	for _, a := range w.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		if err == nil && addr.Zone() == "" && (a.Type == "InternalIP" || a.Type == "ExternalIP") {
			n.Addresses = append(n.Addresses, addr.Unmap())
		}
	}
	slices.SortFunc(n.Addresses, netip.Addr.Compare)
	n.Addresses = slices.Compact(n.Addresses)
	return n
}

func parseVeilNode(o *object.Object) *cluster.Claim {
	claim, err := veilnode.Decode(o.Spec)
	if err != nil {
		return nil
	}
	return claim
}

// metaOf returns the metadata of an object. label names the writer of its kind: of an EndpointSlice
// it is discoveryv1.LabelManagedBy. The admission policy permits writes by the same labels.
func metaOf(o *object.Object, label string) Meta {
	return Meta{Version: o.ResourceVersion, Ours: o.Labels[label] == mirror.ManagedBy}
}

func parseExport(o *object.Object) Export {
	e := Export{Meta: metaOf(o, mirror.ManagedByLabel), Created: o.CreationTimestamp.UTC(),
		Annotations: map[string]string{}}
	if names, limited := o.Annotations[cluster.SitesAnnotation]; limited {
		e.Annotations[cluster.SitesAnnotation] = names
	} else if o.AnnotationsExcess { // It may be among those that were not read.
		e.Annotations[cluster.SitesAnnotation] = ""
	}
	var spec mcs.ServiceExportSpec
	if err := object.Unmarshal(o.Spec, &spec); err == nil {
		var left []string
		e.CopiedLabels, e.CopiedAnnotations, left = record.Copied(spec.ExportedLabels,
			spec.ExportedAnnotations)
		e.NotCopied = slices.Clone(left[:min(len(left), maxNotCopied)])
	} else if len(o.Spec) > 0 {
		e.NotCopied = []string{"no label or annotation is copied: the spec is malformed or too large"}
	}
	var status mcs.ServiceExportStatus
	if object.Unmarshal(o.Status, &status) == nil {
		e.Conditions = status.Conditions
	}
	return e
}

// maxNotCopied bounds Export.NotCopied.
const maxNotCopied = 4

// parseService leaves the spec empty if it is malformed, or not needed. Such a Service has no port,
// so it is not exported.
func parseService(o *object.Object, whole bool) Service {
	e := Service{Meta: metaOf(o, mirror.ManagedByLabel)}
	if !whole {
		return e
	}
	if object.Unmarshal(o.Spec, &e.Spec) != nil {
		e.Spec = corev1.ServiceSpec{}
	}
	return e
}

func parseSlice(o *object.Object, whole bool) Slice {
	e := Slice{Meta: metaOf(o, discoveryv1.LabelManagedBy),
		Service: o.Labels[discoveryv1.LabelServiceName]}
	e.Slice.AddressType = discoveryv1.AddressType(o.AddressType)
	if e.Ours {
		e.Slice.Labels = o.Labels
	}
	if !whole || e.Service == "" || e.Slice.AddressType == discoveryv1.AddressTypeFQDN {
		return e
	}
	if object.Unmarshal(o.Endpoints, &e.Slice.Endpoints) != nil ||
		object.Unmarshal(o.Ports, &e.Slice.Ports) != nil {
		e.Slice.Endpoints, e.Slice.Ports = nil, nil
	}
	return e
}

func parseImport(o *object.Object) Import {
	e := Import{Meta: metaOf(o, mirror.ManagedByLabel)}
	first := o.Annotations[mirror.FirstAnnotation]
	e.PreferLocal = o.Annotations[mirror.PreferAnnotation] == mirror.PreferLocal
	e.Object.Labels, e.Object.Annotations, _ = record.Copied(o.Labels, o.Annotations)
	e.Object.Annotations[mirror.FirstAnnotation] = first
	if json.Unmarshal([]byte(first), &e.First) != nil {
		e.First = nil
	}
	if object.Unmarshal(o.Spec, &e.Object.Spec) != nil ||
		object.Unmarshal(o.Status, &e.Object.Status) != nil {
		e.Object.Spec, e.Object.Status = mcs.ServiceImportSpec{}, mcs.ServiceImportStatus{}
	}
	return e
}

func parseSpec(o *object.Object) Raw {
	return Raw{metaOf(o, mirror.ManagedByLabel), Canonical(o.Spec)}
}

func parseStatus(o *object.Object) Raw {
	return Raw{metaOf(o, mirror.ManagedByLabel), Canonical(o.Status)}
}

// Canonical returns JSON with sorted keys, so that equal content has equal text. It returns "" for
// text that is not JSON.
func Canonical(raw []byte) string {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return ""
	}
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(text)
}
