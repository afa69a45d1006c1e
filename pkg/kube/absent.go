package kube

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// absence notes that an optional kind is not installed, for one reflector.
type absence struct {
	kind  kind
	store cache.ReflectorStore
	// was reports whether objects may be known; times is how often in a row the kind was absent.
	was   bool
	times int
}

// errAbsent has a reflector try again later. It is no problem.
var errAbsent = errors.New("the kind is not installed")

// believed is how often in a row a kind must be absent before objects that were known are
// forgotten: an API server that starts may not know all kinds yet.
const believed = 5

// found returns err, or errAbsent if the kind is optional and not installed. The store is then told
// that there is nothing.
func (a *absence) found(err error) error {
	if !a.kind.optional || !apierrors.IsNotFound(err) {
		if err == nil {
			a.was, a.times = true, 0
		}
		return err
	}
	if a.times++; !a.was || a.times >= believed {
		a.was = false
		if err := a.store.Replace(nil, ""); err != nil {
			return err
		}
	}
	return errAbsent
}
