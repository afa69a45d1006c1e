package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// wireKind reads one kind of object in its protobuf form.
type wireKind interface {
	// read returns the metadata and the content, which parse functions take as object.content.
	read(message []byte) (wire.Meta, any, error)
}

// wired is an object of a kind that is read only in protobuf, and without the parts that are not
// used.
type wired[K wireKind] struct{ object }

// wiredList is a list of wired objects.
type wiredList[K wireKind] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []wired[K] `json:"items"`
}

// held returns the object; wired inherits it.
func (o *object) held() *object { return o }

// heldBy returns the object that a store was given.
func heldBy(v any) (*object, bool) {
	h, ok := v.(interface{ held() *object })
	if !ok {
		return nil, false
	}
	return h.held(), true
}

// Reset and Unmarshal let the client library's decoder of protobuf fill an object.
func (o *wired[K]) Reset() { *o = wired[K]{} }

// Unmarshal reads an object; see Reset.
func (o *wired[K]) Unmarshal(message []byte) error {
	var kind K
	meta, content, err := kind.read(message)
	if err != nil {
		return err
	}
	o.object = object{content: content, ObjectMeta: metav1.ObjectMeta{
		Name: meta.Name, Namespace: meta.Namespace, UID: types.UID(meta.UID),
		ResourceVersion: meta.ResourceVersion, Annotations: meta.Annotations,
		Generation: meta.Generation, CreationTimestamp: metav1.NewTime(meta.Created),
		Labels: meta.Labels,
	}}
	return nil
}

// DeepCopyObject makes wired a runtime.Object.
func (o *wired[K]) DeepCopyObject() runtime.Object {
	return &wired[K]{*o.object.DeepCopyObject().(*object)}
}

func (l *wiredList[K]) grow() readable {
	l.Items = append(l.Items, wired[K]{})
	return &l.Items[len(l.Items)-1]
}

func (l *wiredList[K]) shrink() { l.Items = l.Items[:len(l.Items)-1] }

func (l *wiredList[K]) setMeta(resourceVersion, next string) {
	l.ListMeta = metav1.ListMeta{ResourceVersion: resourceVersion, Continue: next}
}

// DeepCopyObject makes wiredList a runtime.Object.
func (l *wiredList[K]) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]wired[K], len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*wired[K])
	}
	return &out
}

// mirrorAnnotation is on mirror pods: its value is the UID that the kubelet has for the pod.
const mirrorAnnotation = "kubernetes.io/config.mirror"

// policyReader keeps the metadata that policies and the reflector use.
var policyReader = wire.Reader{AllLabels: true,
	Annotations: []string{mirrorAnnotation, metav1.InitialEventsAnnotationKey}}

type podWire struct{}

func (podWire) read(message []byte) (wire.Meta, any, error) {
	p, err := policyReader.Pod(message)
	return p.Meta, &p, err
}

type namespaceWire struct{}

func (namespaceWire) read(message []byte) (wire.Meta, any, error) {
	m, err := policyReader.Object(message)
	return m, &m, err
}

type networkPolicyWire struct{}

func (networkPolicyWire) read(message []byte) (wire.Meta, any, error) {
	p, err := policyReader.NetworkPolicy(message)
	return p.Meta, &p, err
}

// serviceReader keeps the label that names an EndpointSlice's service.
var serviceReader = wire.Reader{Labels: []string{serviceNameLabel},
	Annotations: []string{metav1.InitialEventsAnnotationKey}}

type serviceWire struct{}

func (serviceWire) read(message []byte) (wire.Meta, any, error) {
	s, err := serviceReader.Service(message)
	return s.Meta, &s, err
}

type sliceWire struct{}

func (sliceWire) read(message []byte) (wire.Meta, any, error) {
	s, err := serviceReader.EndpointSlice(message)
	return s.Meta, &s, err
}

// orJSON makes a kind accept JSON from a server without protobuf: Spec and similar fields are then
// raw.
func orJSON(k kind) kind {
	k.accept = protobufOrJSON
	return k
}

// wiredKind completes a kind that is read only in protobuf.
func wiredKind[K wireKind](k kind) kind {
	k.accept = runtime.ContentTypeProtobuf
	k.newObject = func() runtime.Object { return &wired[K]{} }
	k.newList = func() growing { return &wiredList[K]{} }
	return k
}
