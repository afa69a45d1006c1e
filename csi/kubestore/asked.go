package kubestore

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/csi/volume"
)

// holder returns the node that has the volume now. That is the node where the volume is open, or
// else the node with its disk. If the user requested that another node take the volume over from
// that node, holder returns the other node.
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

// RewrapDone removes a request that Cache.Rewraps returned. If another request has replaced it,
// RewrapDone changes nothing and returns nil.
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

// TakeOver returns the node from which this node may take the volume over, or an empty string
// without such a request. The result can be used as volume.OpenOptions.TakeOver. If another node
// may take the volume over from this node, TakeOver returns a *volume.TakenError.
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
