package kube

import (
	"bytes"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds of the parts of an object in JSON that are decoded, in bytes of text. A larger part is not
// decoded; object.excess then reports it.
const (
	maxMetaJSON = 64 << 10 // each of labels, annotations and ownerReferences
	maxPartJSON = 256 << 10
)

// jsonObject is an object as it is decoded: the metadata that is used, and the content raw.
type jsonObject struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name              string                               `json:"name"`
		Namespace         string                               `json:"namespace"`
		UID               types.UID                            `json:"uid"`
		ResourceVersion   string                               `json:"resourceVersion"`
		Generation        int64                                `json:"generation"`
		CreationTimestamp metav1.Time                          `json:"creationTimestamp"`
		Labels            boundedJSON[map[string]string]       `json:"labels"`
		Annotations       boundedJSON[map[string]string]       `json:"annotations"`
		OwnerReferences   boundedJSON[[]metav1.OwnerReference] `json:"ownerReferences"`
	} `json:"metadata"`
	Spec        json.RawMessage `json:"spec"`
	Status      json.RawMessage `json:"status"`
	AddressType string          `json:"addressType"`
	Endpoints   json.RawMessage `json:"endpoints"`
	Ports       json.RawMessage `json:"ports"`
}

// boundedJSON is a part of the metadata that is decoded if it is not larger than maxMetaJSON.
type boundedJSON[T any] struct {
	value  T
	excess bool
}

// UnmarshalJSON decodes the part, or notes that it is too large.
func (b *boundedJSON[T]) UnmarshalJSON(raw []byte) error {
	if b.excess = len(raw) > maxMetaJSON; b.excess {
		return nil
	}
	return json.Unmarshal(raw, &b.value)
}

// UnmarshalJSON decodes the metadata that is used and keeps the content raw, so that the size of
// the rest costs nothing but its text.
func (o *object) UnmarshalJSON(raw []byte) error {
	var j jsonObject
	if err := json.Unmarshal(raw, &j); err != nil {
		return err
	}
	m := &j.Metadata
	*o = object{TypeMeta: j.TypeMeta, Spec: j.Spec, Status: j.Status, AddressType: j.AddressType,
		Endpoints: j.Endpoints, Ports: j.Ports,
		excess: m.Labels.excess || m.OwnerReferences.excess,
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID,
			ResourceVersion: m.ResourceVersion, Generation: m.Generation,
			CreationTimestamp: m.CreationTimestamp, Labels: m.Labels.value,
			Annotations: m.Annotations.value, OwnerReferences: m.OwnerReferences.value}}
	return nil
}

// present reports whether a list has an entry, without keeping any.
type present bool

// UnmarshalJSON looks whether there is anything between the brackets.
func (p *present) UnmarshalJSON(raw []byte) error {
	*p = len(bytes.Trim(raw, "[] \t\r\n")) > 0 && string(raw) != "null"
	return nil
}
