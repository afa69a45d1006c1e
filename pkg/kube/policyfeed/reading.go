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

// reading records which kinds of policy objects cannot be read at present; a nil reading records
// nothing. Meanwhile, a policy that veild has not read may select a pod that is first seen.
type reading struct {
	node       string
	setFailing func(failing bool) // must not block

	mu      sync.Mutex
	failing map[string]bool // by the plural resource
	// unsure reports whether a pod of this node was seen since the first of the failing kinds
	// failed. Those kinds are then listed instead of watched on. A watch that goes on delivers what
	// it missed a moment later, and does not report when that is complete.
	unsure bool
}

// reflector returns a reflector that keeps st like the list of k and records failures.
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
		if !errors.Is(err, context.Canceled) { // the end of Run
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

// saw records that a pod was put.
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
