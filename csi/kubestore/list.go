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

// Object is a VeilVolume, valid or invalid, for display and for requests of users.
type Object struct {
	// State is the trusted state. For an invalid object only its Volume is set.
	State volume.State
	// Asked holds the requests of users.
	Asked Asked
	// Holder is the node that executes the requests. Empty means that there is none.
	Holder string
	// Created is the creation time of the object.
	Created time.Time
	// Err is the reason why the object is invalid, or nil.
	Err error
}

func newObject(o *unstructured.Unstructured) Object {
	st, spec, err := parse(o)
	st.Volume = o.GetName()
	return Object{State: st, Asked: spec.Asked, Holder: holder(st, spec.Asked),
		Created: o.GetCreationTimestamp().Time, Err: err}
}

// Objects returns all VeilVolumes, including invalid ones, in no particular order.
func (s *Store) Objects(ctx context.Context) ([]Object, error) {
	var out []Object
	err := s.each(ctx, "", func(o *unstructured.Unstructured) { out = append(out, newObject(o)) })
	return out, err
}

// Object returns one object, or volume.ErrNotFound. For an invalid object it returns no error, but
// sets Object.Err.
func (s *Store) Object(ctx context.Context, name string) (Object, error) {
	o, err := s.get(ctx, name)
	if err != nil {
		return Object{}, err
	}
	return newObject(o), nil
}

// ParseObject parses a VeilVolume that was saved as JSON.
func ParseObject(text []byte) (volume.State, error) {
	s, _, err := parseText(text)
	return s, err
}

// tries is the maximum number of attempts to update an object that other clients change at the same
// time.
const tries = 5

// AskRewrap requests that the volume's holder rewrap its key with the present key-encryption key.
// request distinguishes requests. The holder's driver removes the request once it is done.
func (s *Store) AskRewrap(ctx context.Context, name, request string) error {
	return s.ask(ctx, name, "rewrap", request)
}

// AskDestroy requests that the volume's holder destroy the volume. The holder's driver removes the
// VeilVolume once that is done. If the volume has an owner by then (CheckNoOwner), the driver
// removes the request instead.
func (s *Store) AskDestroy(ctx context.Context, name string) error {
	return s.ask(ctx, name, "destroy", true)
}

// WithdrawDestroy removes the request of AskDestroy.
func (s *Store) WithdrawDestroy(ctx context.Context, name string) error {
	return s.ask(ctx, name, "destroy", nil)
}

// ask sets the field of a request in the volume's spec. A nil request removes the field.
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
