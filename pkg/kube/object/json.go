package object

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds of the decoded parts of an object in JSON, in bytes of text. A larger part is not decoded.
// For labels and ownerReferences, Object.Excess reports that, and for annotations
// Object.AnnotationsExcess.
const (
	MaxMetaJSON = 64 << 10 // each of labels, annotations and ownerReferences
	MaxPartJSON = 256 << 10
)

// jsonObject is the JSON form of an object: the used metadata, and the content as raw JSON.
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

// Bounded is a part of an object that is decoded only if it is not larger than MaxMetaJSON.
type Bounded[T any] struct {
	Value  T
	excess bool
}

// UnmarshalJSON decodes the part, or records that it is too large.
func (b *Bounded[T]) UnmarshalJSON(raw []byte) error {
	if b.excess = len(raw) > MaxMetaJSON; b.excess {
		return nil
	}
	return json.Unmarshal(raw, &b.Value)
}

// UnmarshalJSON decodes the used metadata and keeps the content as raw JSON. So the content takes
// only the memory of its text.
func (o *Object) UnmarshalJSON(raw []byte) error {
	var j jsonObject
	if err := json.Unmarshal(raw, &j); err != nil {
		return err
	}
	m := &j.Metadata
	*o = Object{TypeMeta: j.TypeMeta, Spec: j.Spec, Status: j.Status, AddressType: j.AddressType,
		Endpoints: j.Endpoints, Ports: j.Ports,
		Excess:            m.Labels.excess || m.OwnerReferences.excess,
		AnnotationsExcess: m.Annotations.excess,
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID,
			ResourceVersion: m.ResourceVersion, Generation: m.Generation,
			CreationTimestamp: m.CreationTimestamp, Labels: m.Labels.Value,
			Annotations: m.Annotations.Value, OwnerReferences: m.OwnerReferences.Value}}
	return nil
}

// Present reports whether a list in JSON has entries. It does not keep them.
type Present bool

// UnmarshalJSON checks whether there is text between the brackets of the list.
func (p *Present) UnmarshalJSON(raw []byte) error {
	*p = len(bytes.Trim(raw, "[] \t\r\n")) > 0 && string(raw) != "null"
	return nil
}

// Unmarshal decodes a part of an object into v. If raw is empty, it does not change v. It refuses
// more than MaxPartJSON bytes.
func Unmarshal(raw json.RawMessage, v any) error {
	switch {
	case len(raw) == 0:
		return nil
	case len(raw) > MaxPartJSON:
		return fmt.Errorf("%d bytes, more than %d", len(raw), MaxPartJSON)
	}
	return json.Unmarshal(raw, v)
}
