package api

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// Lister returns the function that lists k for the store st. If st is a ListReader, it reduces each
// item before the next is read. A list then takes the memory of the reduced items and of its
// largest item. All pages of a list use one function of BeginList, because it may count items.
func (s *Server) Lister(k object.Kind,
	st cache.ReflectorStore) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	var mu sync.Mutex
	var present func(*object.Object) bool
	of := func(page metav1.ListOptions) func(*object.Object) bool {
		mu.Lock()
		defer mu.Unlock()
		if page.Continue == "" || present == nil {
			present = whole
			if l, ok := st.(ListReader); ok {
				present = l.BeginList()
			}
		}
		return present
	}
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		// The timeout is enough for a large list over a slow link.
		ctx, cancel := context.WithTimeout(ctx, 6*s.Times.Request)
		defer cancel()
		return s.Get(ctx, k, o, of(o))
	}
}

// whole keeps each item of a list as it is.
func whole(*object.Object) bool { return true }

// Get lists k. It calls reduce with each item when it is read. reduce reports whether the list
// keeps the item.
func (s *Server) Get(ctx context.Context, k object.Kind, o metav1.ListOptions,
	reduce func(*object.Object) bool) (object.List, error) {
	body, err := s.request(k, o).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // object.Read has already returned any error of the body.

	list, err := object.Read(body, k, reduce)
	if err != nil {
		return nil, fmt.Errorf("answer of the API server: %w", err)
	}
	return list, nil
}

// request returns a request for the objects of a kind.
func (s *Server) request(k object.Kind, o metav1.ListOptions) *rest.Request {
	r := s.rest.Get().AbsPath(k.Path).VersionedParams(k.Select(o), metav1.ParameterCodec)
	if k.Accept != "" {
		r.SetHeader("Accept", k.Accept)
	}
	return r
}
