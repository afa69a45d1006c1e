package inventory

import (
	"maps"
	"regexp"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// wanted holds the exported services. The content of other Services and EndpointSlices is not kept,
// so the size of the cluster costs no memory. The objects of a service that is exported later are
// read then.
//
//	ServiceExports ─► set ─► unread ─► Inventory.fetch ─► stores of Services and EndpointSlices
//	watches ─────────► has: keep, or not ────────────┘
type wanted struct {
	wake chan struct{} // holds a token if a service may be unread

	mu sync.Mutex
	// begun reports whether lists may have begun. A list has all objects of services that became
	// wanted before it began.
	begun bool
	// last is the number of the newest entry of since, which numbers services in the order in which
	// they became wanted.
	last  uint64
	since map[record.Key]uint64
	// unread holds the services whose objects must be read, because a list may lack them. The value
	// is the number of the request. asked is the number of the last request.
	unread map[record.Key]uint64
	asked  uint64
}

func newWanted() *wanted {
	return &wanted{wake: make(chan struct{}, 1), since: map[record.Key]uint64{},
		unread: map[record.Key]uint64{}}
}

// set makes exactly these services wanted, and reports whether others are not wanted any more.
func (w *wanted) set(exports map[record.Key]Export) (fewer bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.since {
		if _, is := exports[k]; !is {
			delete(w.since, k)
			delete(w.unread, k)
			fewer = true
		}
	}
	for k := range exports {
		if _, was := w.since[k]; !was {
			w.last++
			w.since[k] = w.last
			if w.begun {
				w.askLocked(k)
			}
		}
	}
	return fewer
}

// begin is called before the first list of Services and EndpointSlices.
func (w *wanted) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = true
}

// askLocked makes the objects of a service unread.
func (w *wanted) askLocked(k record.Key) {
	w.asked++
	w.unread[k] = w.asked
	api.Poke(w.wake)
}

// ask makes the objects of these services unread, as far as the services are wanted.
func (w *wanted) ask(services []record.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range services {
		if w.since[k] > 0 && w.unread[k] == 0 {
			w.askLocked(k)
		}
	}
}

// in returns the wanted services of a namespace.
func (w *wanted) in(namespace string) (services []record.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.since {
		if k.Namespace == namespace {
			services = append(services, k)
		}
	}
	return services
}

// has reports whether a service is wanted.
func (w *wanted) has(k record.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.since[k] > 0
}

// mark returns a number for newer.
func (w *wanted) mark() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// newer reports whether a service became wanted after mark returned this number. Its objects are
// read again then.
func (w *wanted) newer(k record.Key, mark uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since[k] <= mark {
		return false
	}
	w.askLocked(k)
	return true
}

// done records that the objects of a service were read for the request with this number. A later
// request stays.
func (w *wanted) done(k record.Key, number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unread[k] == number {
		delete(w.unread, k)
	}
}

// unreadNow returns the services whose objects have not been read, and the number of the request of
// each.
func (w *wanted) unreadNow() map[record.Key]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.unread)
}

// derivedName matches the names that mirror.DerivedName returns, and the names of EndpointSlices of
// imports. An object of another program with such a name is kept, without its content.
var derivedName = regexp.MustCompile(`^mcs-[0-9a-f]{20}(-|$)`)

// wantsService reports whether a Service is kept, and whether its content is.
func (w *wanted) wantsService(o *object.Object) (kept, whole bool) {
	whole = metaOf(o, mirror.ManagedByLabel).Ours || w.has(keyOf(o))
	return whole || derivedName.MatchString(o.Name), whole
}

// wantsSlice is wantsService for an EndpointSlice.
func (w *wanted) wantsSlice(o *object.Object) (kept, whole bool) {
	service := o.Labels[discoveryv1.LabelServiceName]
	whole = metaOf(o, discoveryv1.LabelManagedBy).Ours || service != "" &&
		w.has(record.Key{Namespace: o.Namespace, Name: service})
	return whole || derivedName.MatchString(o.Name), whole
}
