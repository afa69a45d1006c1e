package object

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// List is a list of one kind that is read item by item.
type List interface {
	runtime.Object
	// grow appends an empty item and returns it. shrink removes the last item.
	grow() readable
	shrink()
	setMeta(resourceVersion, next string)
}

// readable is an item of a list.
type readable interface {
	held() *Object
	Unmarshal(message []byte) error
}

// Read reads a list of k from an answer in protobuf or JSON. It calls reduce with each item before
// it reads the next. reduce reports whether the list keeps the item.
func Read(answer io.Reader, k Kind, reduce func(*Object) bool) (list List, err error) {
	list = k.newList()
	r := bufio.NewReaderSize(answer, 64<<10)
	switch {
	case wire.IsProtobuf(r):
		err = readProtobuf(r, list, reduce)
	case k.Accept == runtime.ContentTypeProtobuf:
		err = fmt.Errorf("%s are not in protobuf", k.What)
	default:
		err = readJSON(json.NewDecoder(r), list, reduce)
	}
	return list, err
}

func readProtobuf(r *bufio.Reader, list List, reduce func(*Object) bool) error {
	meta, err := wire.ReadList(r, func(message []byte) error {
		item := list.grow()
		if err := item.Unmarshal(message); err != nil {
			return err
		}
		keep(list, item, reduce)
		return nil
	})
	list.setMeta(meta.ResourceVersion, meta.Continue)
	return err
}

func readJSON(d *json.Decoder, list List, reduce func(*Object) bool) error {
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

func readItems(d *json.Decoder, list List, reduce func(*Object) bool) error {
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
		keep(list, item, reduce)
	}
	return expect(d, json.Delim(']'))
}

// keep calls reduce with item, the last item of list, and removes the item if reduce returns false.
func keep(list List, item readable, reduce func(*Object) bool) {
	if !reduce(item.held()) {
		list.shrink()
	}
}

// expect reads a token, and returns an error unless it is want.
func expect(d *json.Decoder, want json.Delim) error {
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t != want:
		return fmt.Errorf("%v where %v begins or ends a list", t, want)
	}
	return nil
}
