package kube

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// definitionVersion is that of a CustomResourceDefinition, which says that a kind is installed.
var definitionVersion = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}

// definition returns the kind of the one CustomResourceDefinition of k, whose name is k.what.
func (k kind) definition() kind {
	return kind{
		what: "customresourcedefinition " + k.what, rule: k.rule, name: k.what,
		path:    []string{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions"},
		version: definitionVersion,
	}
}

// reflectInstalled keeps st like the API server's list of a kind that a cluster need not have, until
// ctx ends: without its CustomResourceDefinition st is empty. Asking for a kind that is not there
// again and again would cost each API server a request a node and interval.
func (c *Client) reflectInstalled(ctx context.Context, k kind, st cache.ReflectorStore) {
	var stop func()
	empty := func() {
		// It fails only on objects of another type, and there are none.
		_ = st.Replace(nil, "")
	}
	definitions := newFeed(c, "CustomResourceDefinition ",
		func(o *object) parsed[string] {
			name := o.Name
			return parsed[string]{value: &name}
		},
		func(name string) any { return name },
		func(string) { stop = c.startReflect(ctx, k, st) },
		func(string) {
			stop()
			stop = nil
			c.report("read "+k.what, nil)
			empty()
		},
		func() {
			if stop == nil {
				empty()
			}
		})

	c.reflect(ctx, k.definition(), definitions)
	if stop != nil {
		stop()
	}
}

// startReflect begins to keep st like the list of k, until ctx ends or stop has returned.
func (c *Client) startReflect(ctx context.Context, k kind, st cache.ReflectorStore) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.reflect(ctx, k, st) })
	return func() {
		cancel()
		wg.Wait()
	}
}
