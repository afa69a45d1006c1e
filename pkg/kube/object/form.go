package object

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// typed is an object of one kind. It is a Go type per kind, because the client library's decoders
// select a kind by its Go type. If it was read from protobuf, its Content is a *C. For a kind that
// exists only in JSON, C is not a type of package wire.
type typed[C any] struct{ Object }

// typedList is a list of typed objects.
type typedList[C any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []typed[C] `json:"items"`
}

// Reset empties the object. The client library's decoder of protobuf needs Reset and Unmarshal.
func (o *typed[C]) Reset() { *o = typed[C]{} }

// Unmarshal reads an object from protobuf without its envelope. If only the content of a Service or
// an EndpointSlice is malformed, the object is Unread.
func (o *typed[C]) Unmarshal(message []byte) error {
	content := new(C)
	meta, err := read(content, message)
	if err != nil && (!mayBeUnread(content) || meta.Name == "" || meta.ResourceVersion == "") {
		return err
	}
	o.Object = Object{Unread: err, ObjectMeta: metav1.ObjectMeta{
		Name: meta.Name, Namespace: meta.Namespace, UID: types.UID(meta.UID),
		ResourceVersion: meta.ResourceVersion, Annotations: meta.Annotations,
		Generation: meta.Generation, CreationTimestamp: metav1.NewTime(meta.Created),
		Labels: meta.Labels,
	}}
	if err == nil {
		o.Content = content
	}
	return nil
}

// mayBeUnread reports whether an object with this content may be passed on without it. Then what
// was read of it before stays in force. That would be wrong for a policy.
func mayBeUnread(content any) bool {
	switch content.(type) {
	case *wire.Service, *wire.EndpointSlice:
		return true
	}
	return false
}

// DeepCopyObject makes typed a runtime.Object.
func (o *typed[C]) DeepCopyObject() runtime.Object {
	return &typed[C]{*o.Object.DeepCopyObject().(*Object)}
}

func (l *typedList[C]) grow() readable {
	l.Items = append(l.Items, typed[C]{})
	return &l.Items[len(l.Items)-1]
}

func (l *typedList[C]) shrink() { l.Items = l.Items[:len(l.Items)-1] }

func (l *typedList[C]) setMeta(resourceVersion, next string) {
	l.ListMeta = metav1.ListMeta{ResourceVersion: resourceVersion, Continue: next}
}

// DeepCopyObject makes typedList a runtime.Object.
func (l *typedList[C]) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]typed[C], len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*typed[C])
	}
	return &out
}

// MirrorAnnotation is an annotation of mirror pods. Its value is the kubelet's UID of the pod.
const MirrorAnnotation = "kubernetes.io/config.mirror"

var (
	// nodeReader keeps the metadata that the parser of Nodes and the reflector use. It allows more
	// labels than for other objects, because the discovery of hardware features adds many.
	nodeReader = wire.Reader{AllLabels: true, MaxLabels: MaxNodeLabels,
		Annotations: []string{metav1.InitialEventsAnnotationKey}}
	// policyReader keeps the metadata that policies and the reflector use.
	policyReader = wire.Reader{AllLabels: true,
		Annotations: []string{MirrorAnnotation, metav1.InitialEventsAnnotationKey}}
	// serviceReader keeps the label that names an EndpointSlice's service.
	serviceReader = wire.Reader{Labels: []string{ServiceNameLabel},
		Annotations: []string{metav1.InitialEventsAnnotationKey}, Names: &wire.Names{}}
)

// MaxNodeLabels bounds the labels of a Node in protobuf, in elements of package wire.
const MaxNodeLabels = 1024

// read reads the content of an object in protobuf, and returns its metadata.
func read(content any, message []byte) (meta wire.Meta, err error) {
	switch c := content.(type) {
	case *wire.Node:
		*c, err = nodeReader.Node(message)
		meta = c.Meta
	case *wire.Pod:
		*c, err = policyReader.Pod(message)
		meta = c.Meta
	case *wire.Meta:
		*c, err = policyReader.Object(message)
		meta = *c
	case *wire.NetworkPolicy:
		*c, err = policyReader.NetworkPolicy(message)
		meta = c.Meta
	case *wire.Service:
		*c, err = serviceReader.Service(message)
		meta = c.Meta
	case *wire.EndpointSlice:
		*c, err = serviceReader.EndpointSlice(message)
		meta = c.Meta
	default:
		err = errors.New("protobuf, of a kind that exists only in JSON")
	}
	return meta, err
}
