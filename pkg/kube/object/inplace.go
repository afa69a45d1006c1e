package object

import (
	"bufio"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// Serializers decode the events of a watch. Unlike those of the client library, they copy neither
// an event nor the content of an object in protobuf before they read it.
var Serializers runtime.NegotiatedSerializer = serializers{codecs.WithoutConversion()}

type serializers struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes returns the serializers of all media types.
func (s serializers) SupportedMediaTypes() []runtime.SerializerInfo {
	all := slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes())
	for i, info := range all {
		if info.MediaType != runtime.ContentTypeProtobuf || info.StreamSerializer == nil {
			continue
		}
		stream := *info.StreamSerializer
		stream.Serializer = eventInPlace{stream.Serializer}
		stream.Framer = buffered{stream.Framer}
		all[i].Serializer, all[i].StreamSerializer = objectInPlace{info.Serializer}, &stream
	}
	return all
}

// buffered is a framer that reads a stream in large pieces. HTTP/2 acknowledges each read of some
// thousand bytes by a packet.
type buffered struct{ runtime.Framer }

// streamBuffer is the size of the buffer of a stream.
const streamBuffer = 64 << 10

// NewFrameReader returns a reader of the frames of r.
func (b buffered) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	return b.Framer.NewFrameReader(struct {
		io.Reader
		io.Closer
	}{bufio.NewReaderSize(r, streamBuffer), r})
}

// eventInPlace decodes the event of a watch. The object of the event shares the memory of data.
type eventInPlace struct{ runtime.Serializer }

// Decode decodes an event into a metav1.WatchEvent.
func (s eventInPlace) Decode(data []byte, defaults *schema.GroupVersionKind,
	into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	e, is := into.(*metav1.WatchEvent)
	if !is {
		return s.Serializer.Decode(data, defaults, into)
	}
	eventType, object, err := wire.Event(data)
	if err != nil {
		return nil, nil, err
	}
	e.Type, e.Object.Raw = typeOf(eventType), object
	return e, nil, nil
}

// typeOf returns b as a string, without a copy for the types of events that there are.
func typeOf(b []byte) string {
	for _, t := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark} {
		if string(b) == string(t) {
			return string(t)
		}
	}
	return string(b)
}

// objectInPlace decodes an object with its envelope. It keeps nothing of data.
type objectInPlace struct{ runtime.Serializer }

// Decode decodes an object of a kind that is read. It leaves other objects to the serializer of the
// client library.
func (s objectInPlace) Decode(data []byte, defaults *schema.GroupVersionKind,
	into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	version, kind, content, err := wire.Envelope(data)
	if err != nil || into != nil {
		return s.Serializer.Decode(data, defaults, into)
	}
	gvk := schema.FromAPIVersionAndKind(string(version), string(kind))
	o, err := scheme.New(gvk)
	item, is := o.(readable)
	if err != nil || !is {
		return s.Serializer.Decode(data, defaults, into)
	}
	if err := item.Unmarshal(content); err != nil {
		return nil, &gvk, err
	}
	return o, &gvk, nil
}
