package policyfeed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// maxVersions bounds the served versions in a problem's text.
const maxVersions = 8

// parseServed returns whether a CustomResourceDefinition serves the version of k, and a problem if
// it does not. If a definition has no versions, which no API server allows, it counts as serving
// it.
func parseServed(k object.Kind, o *object.Object) feed.Parsed[bool] {
	var spec struct {
		Versions []struct {
			Name   string `json:"name"`
			Served bool   `json:"served"`
		} `json:"versions"`
	}
	if err := object.Unmarshal(o.Spec, &spec); err != nil {
		return feed.Parsed[bool]{Value: new(bool), Problem: fmt.Sprintf("spec: %v", err)}
	}
	var served []string
	for _, v := range spec.Versions {
		if v.Served && len(served) < maxVersions {
			served = append(served, fmt.Sprintf("%.63s", v.Name))
		}
	}
	is := len(spec.Versions) == 0 || slices.Contains(served, k.Version.Version)
	p := feed.Parsed[bool]{Value: &is}
	if !is {
		p.Problem = fmt.Sprintf("it serves the versions [%s], but veild reads %s, so the policies "+
			"in force stay and new pods are mute; serve %[2]s too, or upgrade veild",
			strings.Join(served, ", "), k.Version.Version)
	}
	return p
}

// reflectInstalled keeps st equal to the API server's list of a kind that not every cluster has,
// until ctx ends. It watches the kind's CustomResourceDefinition, because repeated requests of all
// nodes for a missing kind would load the API servers. Without the definition, st is empty. While
// the definition does not serve the version that is read, st is not changed, and r, unless it is
// nil, records a failure.
func reflectInstalled(ctx context.Context, s *api.Server, k object.Kind, st cache.ReflectorStore,
	r *reading) {
	var stop func()
	end := func() {
		if stop != nil {
			stop()
			stop = nil
		}
	}
	exists := false
	empty := func() {
		// Replace can fail only because of objects of another type, and there are no objects.
		_ = st.Replace(nil, "")
	}
	definitions := &feed.Feed[bool]{Server: s, What: k.Definition().Kind,
		Parse: func(o *object.Object) feed.Parsed[bool] { return parseServed(k, o) },
		Owner: func(bool) any { return nil },
		Put: func(served bool) {
			exists = true
			end()
			s.Report("read "+k.What, nil)
			r.set(k.What, !served)
			if served {
				stop = startReflect(ctx, s, k, st, r)
			}
		},
		Drop: func(bool) {
			exists = false
			end()
			s.Report("read "+k.What, nil)
			empty()
			r.set(k.What, false)
		},
		Listed: func() {
			if !exists {
				empty()
			}
		}}

	r.reflector(s, k.Definition(), definitions).Run(ctx, definitions)
	end()
}

// startReflect starts to keep st equal to the list of k, until ctx ends or stop is called. stop
// waits for the end.
func startReflect(ctx context.Context, s *api.Server, k object.Kind, st cache.ReflectorStore,
	r *reading) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.reflector(s, k, st).Run(ctx, st) })
	return func() {
		cancel()
		wg.Wait()
	}
}
