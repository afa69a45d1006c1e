package object

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds of the parts of an object in JSON that are decoded, in bytes of text. A larger part is not
// decoded; Object.Excess then reports it.
const (
	MaxMetaJSON = 64 << 10 // each of labels, annotations and ownerReferences
	MaxPartJSON = 256 << 10
)

// jsonObject is an object as it is decoded: the metadata that is used, and the content raw.
type jsonObject struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name              string                           `json:"name"`
		Namespace         string                           `json:"namespace"`
		UID               types.UID                        `json:"uid"`
		ResourceVersion   string                           `json:"resourceVersion"`
		Generation        int64                            `json:"generation"`
		CreationTimestamp metav1.Time                      `json:"creationTimestamp"`
		Labels            Bounded[map[string]string]       `json:"labels"`
		Annotations       Bounded[map[string]string]       `json:"annotations"`
		OwnerReferences   Bounded[[]metav1.OwnerReference] `json:"ownerReferences"`
	} `json:"metadata"`
	Spec        json.RawMessage `json:"spec"`
	Status      json.RawMessage `json:"status"`
	AddressType string          `json:"addressType"`
	Endpoints   json.RawMessage `json:"endpoints"`
	Ports       json.RawMessage `json:"ports"`
}

// Bounded is a part of an object that is decoded if it is not larger than MaxMetaJSON.
type Bounded[T any] struct {
	Value  T
	excess bool
}

// UnmarshalJSON decodes the part, or notes that it is too large.
func (b *Bounded[T]) UnmarshalJSON(raw []byte) error {
	if b.excess = len(raw) > MaxMetaJSON; b.excess {
		return nil
	}
	return json.Unmarshal(raw, &b.Value)
}

// UnmarshalJSON decodes the metadata that is used and keeps the content raw, so that the size of
// the rest costs nothing but its text.
func (o *Object) UnmarshalJSON(raw []byte) error {
	var j jsonObject
	if err := json.Unmarshal(raw, &j); err != nil {
		return err
	}
	m := &j.Metadata
	*o = Object{TypeMeta: j.TypeMeta, Spec: j.Spec, Status: j.Status, AddressType: j.AddressType,
		Endpoints: j.Endpoints, Ports: j.Ports,
		Excess: m.Labels.excess || m.OwnerReferences.excess,
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID,
			ResourceVersion: m.ResourceVersion, Generation: m.Generation,
			CreationTimestamp: m.CreationTimestamp, Labels: m.Labels.Value,
			Annotations: m.Annotations.Value, OwnerReferences: m.OwnerReferences.Value}}
	return nil
}

// Present reports whether a list has an entry, without keeping any.
type Present bool

// UnmarshalJSON looks whether there is anything between the brackets.
func (p *Present) UnmarshalJSON(raw []byte) error {
	*p = len(bytes.Trim(raw, "[] \t\r\n")) > 0 && string(raw) != "null"
	return nil
}

// Unmarshal decodes a part of an object. It does not change v when there is nothing to read, and
// refuses text of more than MaxPartJSON bytes.
func Unmarshal(raw json.RawMessage, v any) error {
	switch {
	case len(raw) == 0:
		return nil
	case len(raw) > MaxPartJSON:
		return fmt.Errorf("%d bytes, more than %d", len(raw), MaxPartJSON)
	}
	return json.Unmarshal(raw, v)
}
