package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// growing is a list that is read item by item.
type growing interface {
	runtime.Object
	// grow appends an empty item and returns it; shrink takes it away.
	grow() readable
	shrink()
	setMeta(resourceVersion, next string)
}

// readable is an item of a list.
type readable interface {
	runtime.Object
	Unmarshal(message []byte) error
}

// lister returns the ListFunc of k. Each item is reduced by the store's transform, if it has one,
// before the next is read. A list then costs the memory of the reduced items and of its largest
// item. The pages of a list have one transform, because it may count what it has seen.
func (c *Client) lister(k kind,
	st cache.ReflectorStore) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	var mu sync.Mutex
	var present cache.TransformFunc
	of := func(page metav1.ListOptions) cache.TransformFunc {
		mu.Lock()
		defer mu.Unlock()
		if page.Continue == "" || present == nil {
			present = transformOf(st)
		}
		return present
	}
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		reduce, list := of(o), k.list()
		// a large list over a slow link
		ctx, cancel := context.WithTimeout(ctx, 6*c.times.request)
		defer cancel()
		return list, c.get(ctx, k, o, list, reduce)
	}
}

// transformOf returns what reads the items of one list for a store.
func transformOf(st cache.ReflectorStore) cache.TransformFunc {
	if s, ok := st.(sharing); ok {
		if t := s.leavingOut(); t != nil {
			return t
		}
	}
	if t, ok := st.(cache.TransformingStore); ok {
		return t.Transformer()
	}
	return whole
}

// whole is a transform that changes nothing.
var whole cache.TransformFunc = func(v any) (any, error) { return v, nil }

// get lists k into list; reduce is called with each item once it is read. It returns nil for an
// item that the list shall not have.
func (c *Client) get(ctx context.Context, k kind, o metav1.ListOptions, list growing,
	reduce cache.TransformFunc) error {
	body, err := c.request(k, o).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // an answer that was read to its end has no error left

	r := bufio.NewReaderSize(body, 64<<10)
	switch {
	case wire.IsProtobuf(r):
		err = readProtobuf(r, list, reduce)
	case k.accept == runtime.ContentTypeProtobuf:
		err = fmt.Errorf("%s are not in protobuf", k.what)
	default:
		err = readJSON(json.NewDecoder(r), list, reduce)
	}
	if err != nil {
		return fmt.Errorf("answer of the API server: %w", err)
	}
	return nil
}

func readProtobuf(r *bufio.Reader, list growing, reduce cache.TransformFunc) error {
	meta, err := wire.ReadList(r, func(message []byte) error {
		item := list.grow()
		if err := item.Unmarshal(message); err != nil {
			return err
		}
		return keep(list, item, reduce)
	})
	list.setMeta(meta.ResourceVersion, meta.Continue)
	return err
}

func readJSON(d *json.Decoder, list growing, reduce cache.TransformFunc) error {
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}

		switch key {
		case "metadata":
			var meta metav1.ListMeta
			if err := d.Decode(&meta); err != nil {
				return err
			}
			list.setMeta(meta.ResourceVersion, meta.Continue)
		case "items":
			err = readItems(d, list, reduce)
		default:
			err = d.Decode(&struct{}{})
			if _, other := errors.AsType[*json.UnmarshalTypeError](err); other {
				err = nil // a value of another type is skipped
			}
		}
		if err != nil {
			return err
		}
	}
	return expect(d, json.Delim('}'))
}

func readItems(d *json.Decoder, list growing, reduce cache.TransformFunc) error {
	switch t, err := d.Token(); {
	case err != nil || t == nil: // null is a list without items
		return err
	case t != json.Delim('['):
		return fmt.Errorf("items are %v", t)
	}
	for d.More() {
		item := list.grow()
		if err := d.Decode(item); err != nil {
			return err
		}
		if err := keep(list, item, reduce); err != nil {
			return err
		}
	}
	return expect(d, json.Delim(']'))
}

// keep reduces the last item of a list, or takes it away.
func keep(list growing, item readable, reduce cache.TransformFunc) error {
	v, err := reduce(item)
	if err == nil && v == nil {
		list.shrink()
	}
	return err
}

// expect reads a token that must be there.
func expect(d *json.Decoder, want json.Delim) error {
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t != want:
		return fmt.Errorf("%v where %v begins or ends a list", t, want)
	}
	return nil
}

// request returns a request for the objects of a kind.
func (c *Client) request(k kind, o metav1.ListOptions) *rest.Request {
	r := c.rest.Get().AbsPath(k.path...).VersionedParams(selected(k, o), metav1.ParameterCodec)
	if k.accept != "" {
		r.SetHeader("Accept", k.accept)
	}
	return r
}
