package policyfeed

import (
	"context"
	"errors"
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// reading records which kinds of policy objects currently cannot be read. While there are such
// kinds, a policy that veild has not read may select a new pod. A nil reading records nothing.
type reading struct {
	node       string
	setFailing func(failing bool) // must not block

	mu      sync.Mutex
	failing map[string]bool // failing kinds by plural resource
	// unsure reports whether a pod of this node was seen since reads began to fail. Failing kinds
	// are then listed again, instead of resuming the watch. A resumed watch delivers missed
	// changes, but does not report when these are complete.
	unsure bool
}

// reflector returns a reflector that keeps st equal to the list of k, and records failures in r.
func (r *reading) reflector(s *api.Server, k object.Kind,
	st cache.ReflectorStore) *reflector.Reflector {
	out := s.Reflector(k, st)
	if r == nil {
		return out
	}
	report := out.Report
	out.Relist = r.relist
	out.Report = func(err error) {
		report(err)
		if !errors.Is(err, context.Canceled) { // Canceled means that Run ends.
			r.set(k.What, err != nil)
		}
	}
	return out
}

// set records whether reads of a kind fail.
func (r *reading) set(what string, fails bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.failing)
	if r.failing[what] = true; !fails {
		delete(r.failing, what)
	}
	if now := len(r.failing); now > 0 != (before > 0) {
		r.unsure = false
		r.setFailing(now > 0)
	}
}

// saw records that a new or changed pod was passed on.
func (r *reading) saw(p policy.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsure = r.unsure || len(r.failing) > 0 && p.Node == r.node
}

func (r *reading) relist() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unsure
}
