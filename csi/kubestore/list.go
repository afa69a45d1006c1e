package kubestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/csi/volume"
)

// Object is a VeilVolume as people look at it.
type Object struct {
	// State is what is trusted; of one that is refused only its Volume is known.
	State volume.State
	// Asked is what a person asks for.
	Asked Asked
	// Holder is the node that does what is asked; empty when there is none.
	Holder string
	// Created is when the object was made.
	Created time.Time
	// Err is why it is refused, or nil.
	Err error
}

func newObject(o *unstructured.Unstructured) Object {
	st, spec, err := parse(o)
	st.Volume = o.GetName()
	return Object{State: st, Asked: spec.Asked, Holder: holder(st, spec.Asked),
		Created: o.GetCreationTimestamp().Time, Err: err}
}

// Objects are all VeilVolumes, those that are refused among them, in no order.
func (s *Store) Objects(ctx context.Context) ([]Object, error) {
	var out []Object
	err := s.each(ctx, "", func(o *unstructured.Unstructured) { out = append(out, newObject(o)) })
	return out, err
}

// Object is one of them; volume.ErrNotFound when there is none. One that is refused is no error
// here.
func (s *Store) Object(ctx context.Context, name string) (Object, error) {
	o, err := s.get(ctx, name)
	if err != nil {
		return Object{}, err
	}
	return newObject(o), nil
}

// ParseObject reads a VeilVolume that was saved as JSON.
func ParseObject(text []byte) (volume.State, error) {
	s, _, err := parseText(text)
	return s, err
}

// tries is how often a request is written when another client changes the object at that moment.
const tries = 5

// AskRewrap asks the volume's holder to wrap its key by the present key-encryption key. Its driver
// removes the request when that is done.
func (s *Store) AskRewrap(ctx context.Context, name, request string) error {
	var err error
	for range tries {
		if err = s.askRewrap(ctx, name, request); !errors.Is(err, volume.ErrConflict) {
			return err
		}
	}
	return err
}

func (s *Store) askRewrap(ctx context.Context, name, request string) error {
	o, err := s.get(ctx, name)
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedField(o.Object, request, "spec", "rewrap"); err != nil {
		return fmt.Errorf("volume %s: %w: %w", name, volume.ErrState, err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = s.volumes.Update(ctx, o,
		metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
	return explain("ask for volume "+name, err)
}
