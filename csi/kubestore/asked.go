package kubestore

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/csi/volume"
)

// holder is the node that has the volume now: the one where it is open, else the one with its disk.
// Where a person lets another node take it from that one, it is the other: the first was declared
// gone.
func holder(st volume.State, asked Asked) string {
	now := st.Writer
	if now == "" {
		now = st.Request.Node
	}
	if t := asked.TakeOver; t != nil && t.From == now {
		return t.To
	}
	return now
}

// RewrapDone removes a request that Cache.Rewraps returned. A request that another one replaced
// meanwhile stays, and RewrapDone returns nil.
func (s *Store) RewrapDone(ctx context.Context, name, request string) error {
	o, err := s.get(ctx, name)
	if err != nil {
		return err
	}
	now, _, err := unstructured.NestedString(o.Object, "spec", "rewrap")
	if err != nil {
		return fmt.Errorf("volume %s: %w: %w", name, volume.ErrState, err)
	}
	if now != request {
		return nil
	}
	unstructured.RemoveNestedField(o.Object, "spec", "rewrap")
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = s.volumes.Update(ctx, o,
		metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
	return explain("end request of volume "+name, err)
}

// TakeOver returns the node from which this one may take the volume, or an empty string without
// such a request. It fits volume.OpenOptions.TakeOver. A *volume.TakenError means that another node
// may take it from this one.
func (s *Store) TakeOver(ctx context.Context, name string) (from string, err error) {
	o, err := s.get(ctx, name)
	if err != nil {
		return "", err
	}
	_, spec, err := parse(o)
	t := spec.TakeOver
	switch {
	case err != nil || t == nil:
		return "", err
	case t.To == s.node:
		return t.From, nil
	case t.From == s.node:
		return "", &volume.TakenError{Volume: name, From: t.From, To: t.To}
	}
	return "", nil
}
