package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// definitionVersion is the API version of CustomResourceDefinition. Such an object exists if its
// kind is installed.
var definitionVersion = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}

// definition returns a kind that selects the CustomResourceDefinition of k, whose name is k.what.
func (k kind) definition() kind {
	return kind{
		what: "customresourcedefinition " + k.what, rule: k.rule, name: k.what,
		path:    []string{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions"},
		version: definitionVersion,
	}
}

// maxVersions bounds the served versions that are named.
const maxVersions = 8

// parseServed returns whether a definition serves the version of k, and the problem if it does not.
// A definition without versions, which no API server has, counts as one that serves it.
func (k kind) parseServed(o *object) parsed[bool] {
	var spec struct {
		Versions []struct {
			Name   string `json:"name"`
			Served bool   `json:"served"`
		} `json:"versions"`
	}
	if err := unmarshal(o.Spec, &spec); err != nil {
		return parsed[bool]{value: new(bool), problem: fmt.Sprintf("spec: %v", err)}
	}
	var served []string
	for _, v := range spec.Versions {
		if v.Served && len(served) < maxVersions {
			served = append(served, fmt.Sprintf("%.63s", v.Name))
		}
	}
	is := len(spec.Versions) == 0 || slices.Contains(served, k.version.Version)
	p := parsed[bool]{value: &is}
	if !is {
		p.problem = fmt.Sprintf("it serves the versions [%s], and veild reads %s: what is in force "+
			"stays, and new pods are mute; serve %[2]s too, or upgrade veild",
			strings.Join(served, ", "), k.version.Version)
	}
	return p
}

// reflectInstalled keeps st like the API server's list of a kind that a cluster need not have, until
// ctx ends: without its CustomResourceDefinition st is empty. While the definition does not serve the
// version that is read, st stays as it is, not listed at first, and r, if not nil, notes a failure.
// Asking for a kind that is not there again and again would cost each API server a request a node
// and interval.
func (c *Client) reflectInstalled(ctx context.Context, k kind, st cache.ReflectorStore,
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
		// It fails only on objects of another type, and there are none.
		_ = st.Replace(nil, "")
	}
	definitions := newFeed(c, "CustomResourceDefinition ", k.parseServed,
		func(bool) any { return nil },
		func(served bool) {
			exists = true
			end()
			c.report("read "+k.what, nil)
			r.set(k.what, !served)
			if served {
				stop = c.startReflect(ctx, k, st, r)
			}
		},
		func(bool) {
			exists = false
			end()
			c.report("read "+k.what, nil)
			empty()
			r.set(k.what, false)
		},
		func() {
			if !exists {
				empty()
			}
		})

	r.reflector(c, k.definition(), definitions).Run(ctx, definitions)
	end()
}

// startReflect begins to keep st like the list of k, until ctx ends or stop has returned.
func (c *Client) startReflect(ctx context.Context, k kind, st cache.ReflectorStore,
	r *reading) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.reflector(c, k, st).Run(ctx, st) })
	return func() {
		cancel()
		wg.Wait()
	}
}
