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
	// State is the trusted state. Of a refused one only its Volume is known.
	State volume.State
	// Asked is the request of a person.
	Asked Asked
	// Holder is the node that executes the request; empty means that there is none.
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

// Object returns one object, or volume.ErrNotFound. A refused state is not an error here.
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

// AskRewrap requests that the volume's holder wrap its key by the present key-encryption key. Its
// driver removes the request when that is done.
func (s *Store) AskRewrap(ctx context.Context, name, request string) error {
	return s.ask(ctx, name, "rewrap", request)
}

// AskDestroy requests that the volume's holder destroy it. Its driver removes the VeilVolume when
// that is done. It removes the request instead if the volume has an owner by then (CheckNoOwner).
func (s *Store) AskDestroy(ctx context.Context, name string) error {
	return s.ask(ctx, name, "destroy", true)
}

// WithdrawDestroy removes the request of AskDestroy.
func (s *Store) WithdrawDestroy(ctx context.Context, name string) error {
	return s.ask(ctx, name, "destroy", nil)
}

// ask sets a request in the volume's spec; nil removes it.
func (s *Store) ask(ctx context.Context, name, field string, request any) error {
	var err error
	for range tries {
		if err = s.askOnce(ctx, name, field, request); !errors.Is(err, volume.ErrConflict) {
			return err
		}
	}
	return err
}

func (s *Store) askOnce(ctx context.Context, name, field string, request any) error {
	o, err := s.get(ctx, name)
	if err != nil {
		return err
	}
	if request == nil {
		unstructured.RemoveNestedField(o.Object, "spec", field)
	} else if err := unstructured.SetNestedField(o.Object, request, "spec", field); err != nil {
		return fmt.Errorf("volume %s: %w: %w", name, volume.ErrState, err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = s.volumes.Update(ctx, o,
		metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
	return explain("send the request for volume "+name, err)
}
