package apiwrite

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
)

// Request is a request to the API server.
type Request struct {
	// Method is the method of HTTP, and Path the path below the address of the API server.
	Method, Path string
	// Type is the media type of Body.
	Type string
	Body []byte
}

// Object is an object whose kind and version are set.
type Object interface {
	runtime.Object
	metav1.Object
}

// Create returns the request that creates an object: in JSON if it is unstructured, and otherwise
// in protobuf. It removes the fields that the API server sets from o. A Service gets addresses from
// the API server.
func Create(o Object) (Request, error) {
	strip(o)
	if s, is := o.(*corev1.Service); is {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
	}
	return request(http.MethodPost, pathOf(o), o)
}

// strip removes the fields that the API server sets.
func strip(o Object) {
	o.SetManagedFields(nil)
	o.SetResourceVersion("")
	o.SetUID("")
	o.SetCreationTimestamp(metav1.Time{})
	o.SetGeneration(0)
}

// Update returns the request that replaces an object of any resource version. It removes
// the fields that the API server sets from o.
func Update(o Object) (Request, error) {
	strip(o)
	return request(http.MethodPut, pathOf(o)+"/"+o.GetName(), o)
}

// Delete returns the request that deletes an object.
func Delete(o Object) Request {
	return Request{Method: http.MethodDelete, Path: pathOf(o) + "/" + o.GetName()}
}

// DeleteSlices returns the requests that delete all EndpointSlices of all shapes.
func DeleteSlices() (all []Request) {
	for _, space := range apifeed.Namespaces() {
		o := &discoveryv1.EndpointSlice{
			TypeMeta:   metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
			ObjectMeta: metav1.ObjectMeta{Namespace: space.Name}}
		all = append(all, Request{Method: http.MethodDelete, Path: pathOf(o)})
	}
	return all
}

// CreateAll returns the requests that create objects.
func CreateAll[O Object](all []O) ([]Request, error) {
	requests := make([]Request, len(all))
	for i, o := range all {
		var err error
		if requests[i], err = Create(o); err != nil {
			return nil, err
		}
	}
	return requests, nil
}

func request(method, path string, o Object) (Request, error) {
	r := Request{Method: method, Path: path, Type: runtime.ContentTypeProtobuf}
	if u, is := o.(*unstructured.Unstructured); is {
		var err error
		r.Type = runtime.ContentTypeJSON
		r.Body, err = json.Marshal(u)
		return r, err
	}
	var b bytes.Buffer
	if err := encoder.Encode(o, &b); err != nil {
		return r, fmt.Errorf("encode %T: %w", o, err)
	}
	r.Body = b.Bytes()
	return r, nil
}

var encoder = protobuf.NewSerializer(nil, nil)

// pathOf returns the path of the objects of o's kind, in the namespace of o. The plural of the kind
// must be regular.
func pathOf(o Object) string {
	kind := o.GetObjectKind().GroupVersionKind()
	path := "/apis/" + kind.Group + "/" + kind.Version
	if kind.Group == "" {
		path = "/api/" + kind.Version
	}
	if space := o.GetNamespace(); space != "" {
		path += "/namespaces/" + space
	}
	return path + "/" + strings.ToLower(kind.Kind) + "s"
}

// RefusedError is an answer other than success.
type RefusedError struct {
	Method, Path string
	// Status is the status of HTTP, and Text the beginning of the answer.
	Status int
	Text   string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s %s: %d: %q", e.Method, e.Path, e.Status, e.Text)
}

// Parallel is the number of requests that a Writer has in flight.
const Parallel = 32

// Writer sends requests to an API server. Make it with New.
type Writer struct {
	client *http.Client
	host   string
}

// New returns a Writer with credentials.
func New(config *rest.Config) (*Writer, error) {
	config = rest.CopyConfig(config)
	config.UserAgent, config.DisableCompression = "kube-controller-manager", true
	client, err := rest.HTTPClientFor(config)
	return &Writer{client, config.Host}, err
}

// SendAll creates objects by w.
func SendAll[O Object](ctx context.Context, w *Writer, all []O) error {
	requests, err := CreateAll(all)
	if err != nil {
		return err
	}
	return w.Send(ctx, requests)
}

// Send sends requests, Parallel at a time and in no order. It returns the first error, after which
// it sends no more.
func (w *Writer) Send(ctx context.Context, requests []Request) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(Parallel)
	for _, r := range requests {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return w.send(ctx, r) })
	}
	return group.Wait()
}

func (w *Writer) send(ctx context.Context, r Request) error {
	request, err := http.NewRequestWithContext(ctx, r.Method, w.host+r.Path,
		bytes.NewReader(r.Body))
	if err != nil {
		return err
	}
	if r.Type != "" {
		request.Header.Set("Content-Type", r.Type)
	}
	request.Header.Set("Accept", runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON)
	answer, err := w.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()

	if answer.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 2000)) // what there is
		return &RefusedError{r.Method, r.Path, answer.StatusCode, string(text)}
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}
