package object

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Object is an object of any kind. Its content is kept raw, so that malformed content does not end
// the stream of a watch. A parse function of the kind checks the content later. After Parse, the
// object holds only its name and version, and the result.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec,omitempty"`
	Status            json.RawMessage `json:"status,omitempty"`
	// AddressType, Endpoints and Ports are fields of an EndpointSlice.
	AddressType string          `json:"addressType,omitempty"`
	Endpoints   json.RawMessage `json:"endpoints,omitempty"`
	Ports       json.RawMessage `json:"ports,omitempty"`

	// Excess reports whether labels or ownerReferences in JSON were too large to be decoded.
	Excess bool `json:"-"`
	// AnnotationsExcess reports the same of annotations.
	AnnotationsExcess bool `json:"-"`
	// Unread is the error of content in protobuf that could not be read. Content is nil then.
	Unread error `json:"-"`
	// Content points to the type of package wire that was read from protobuf. It is nil for an
	// object in JSON.
	Content any `json:"-"`
	parsed  any
}

// Parse calls parse, drops the content of o, and stores the result in o. Later calls return this
// result.
func Parse[T any](o *Object, parse func(*Object) T) T {
	if t, ok := o.parsed.(T); ok {
		return t
	}
	t := parse(o)
	next := Parsed(o.Namespace, o.Name, t)
	next.TypeMeta, next.ResourceVersion = o.TypeMeta, o.ResourceVersion
	*o = *next
	return t
}

// Parsed returns an object without content, for which Parse returns t.
func Parsed[T any](namespace, name string, t T) *Object {
	return &Object{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, parsed: t}
}

// Held returns the object in v, an argument of a store's method. It returns false if v is not an
// object of this package.
func Held(v any) (*Object, bool) {
	h, ok := v.(interface{ held() *Object })
	if !ok {
		return nil, false
	}
	return h.held(), true
}

func (o *Object) held() *Object { return o }

// DeepCopyObject makes Object a runtime.Object. The copy shares the result of Parse, which never
// changes.
func (o *Object) DeepCopyObject() runtime.Object {
	out := *o
	o.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec, out.Status, out.Endpoints, out.Ports = clone(o.Spec), clone(o.Status),
		clone(o.Endpoints), clone(o.Ports)
	return &out
}

func clone(raw json.RawMessage) json.RawMessage {
	return append(json.RawMessage(nil), raw...)
}

// OwnerUID returns the UID of the Node that owns o, or "" if no Node owns it.
func (o *Object) OwnerUID() types.UID {
	for _, r := range o.OwnerReferences {
		if r.APIVersion == "v1" && r.Kind == "Node" {
			return r.UID
		}
	}
	return ""
}
