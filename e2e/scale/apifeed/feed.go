package apifeed

import (
	"bytes"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubeveil/kubeveil/e2e/lab/apiserver"
)

// Paths of the kinds that a Feed has.
const (
	Services = "/api/v1/services"
	Slices   = "/apis/discovery.k8s.io/v1/endpointslices"
)

// Object is a *corev1.Service or a *discoveryv1.EndpointSlice. Its type's name and version must be
// set, as Shape does.
type Object interface {
	runtime.Object
	metav1.Object
	Marshal() ([]byte, error)
}

// Feed is the API server. Any goroutine may call its methods at any time.
type Feed struct {
	server *httptest.Server

	mu       sync.Mutex
	revision int
	kinds    map[string]*kind        // by path; the map does not change
	handlers map[string]http.Handler // by path; see Handle
	hold     *hold                   // nil if no list is to stop
	away     bool                    // see Cut
	cuts     int                     // calls of Cut; a request from before one of them breaks
	changed  chan struct{}           // closed at the next change
}

// kind holds the objects of a kind.
type kind struct {
	// bookmark returns an object of the kind without content.
	bookmark func() Object
	// initial holds the event of a list for each object, by namespace and name.
	initial map[string][]byte
	// log holds all events after the revision compacted.
	log       []event
	compacted int
}

// event is an event of a watch.
type event struct {
	revision int
	frame    []byte
}

// hold stops the next list of the kind at path before its event number after.
type hold struct {
	path              string
	after             int
	reached, released chan struct{}
}

// New starts a Feed without objects. The caller closes it.
func New() *Feed {
	service := metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	slice := metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
	f := &Feed{handlers: map[string]http.Handler{}, changed: make(chan struct{}),
		kinds: map[string]*kind{
			Services: {initial: map[string][]byte{},
				bookmark: func() Object { return &corev1.Service{TypeMeta: service} }},
			Slices: {initial: map[string][]byte{},
				bookmark: func() Object { return &discoveryv1.EndpointSlice{TypeMeta: slice} }},
		}}
	f.server = httptest.NewUnstartedServer(f)
	f.server.EnableHTTP2 = true
	f.server.StartTLS()
	return f
}

// Close ends all requests and the server.
func (f *Feed) Close() {
	f.Cut()
	f.server.Close()
}

// URL returns the address of the feed.
func (f *Feed) URL() string { return f.server.URL }

// WriteConfig writes a kubeconfig for the feed. A reader finds no file or the whole file.
func (f *Feed) WriteConfig(path string) error {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.server.Certificate().Raw})
	text, err := apiserver.Kubeconfig(clientcmdapi.Cluster{Server: f.server.URL,
		CertificateAuthorityData: ca}, clientcmdapi.AuthInfo{Token: "bench"})
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Serve makes the feed answer requests for path with body.
func (f *Feed) Serve(path string, body []byte) {
	f.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(body)
	}))
}

// Handle makes h answer requests for path.
func (f *Feed) Handle(path string, h http.Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handlers[path] = h
}

// Put adds or replaces an object. It sets the resource version of o.
func (f *Feed) Put(o Object) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision++
	o.SetResourceVersion(strconv.Itoa(f.revision))
	message, err := encode(o)
	if err != nil {
		return err
	}
	f.putLocked(o, message)
	return nil
}

// PutBad is Put, but the message of the object ends after its metadata, with a field of a wrong
// wire type. No API server sends that.
func (f *Feed) PutBad(o Object) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision++
	o.SetResourceVersion(strconv.Itoa(f.revision))
	content, err := o.Marshal()
	if err != nil {
		return err
	}
	_, _, metadata := protowire.ConsumeField(content)
	content = protowire.AppendTag(content[:metadata], 2, protowire.VarintType)
	message, err := encode(unknownOf(o, "", protowire.AppendVarint(content, 1)))
	if err != nil {
		return err
	}
	f.putLocked(o, message)
	return nil
}

// unknownOf returns an object of the kind of o, or of the kind with a suffix, with a content.
func unknownOf(o Object, suffix string, content []byte) *runtime.Unknown {
	version, kind := o.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	return &runtime.Unknown{Raw: content,
		TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind + suffix}}
}

func (f *Feed) putLocked(o Object, message []byte) {
	k, key, added := f.kindOf(o), keyOf(o), frameOf(watch.Added, message)
	e := event{f.revision, added}
	if k.initial[key] != nil {
		e.frame = frameOf(watch.Modified, message)
	}
	k.initial[key] = added
	f.logLocked(k, e)
}

// Delete deletes an object that was put. o is its last state, and gets another resource version.
func (f *Feed) Delete(o Object) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision++
	o.SetResourceVersion(strconv.Itoa(f.revision))
	message, err := encode(o)
	if err != nil {
		return err
	}
	k := f.kindOf(o)
	delete(k.initial, keyOf(o))
	f.logLocked(k, event{f.revision, frameOf(watch.Deleted, message)})
	return nil
}

func (f *Feed) logLocked(k *kind, e event) {
	k.log = append(k.log, e)
	f.wakeLocked()
}

// wakeLocked wakes all watches.
func (f *Feed) wakeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Bookmark sends watches of the kind at path a bookmark of a revision that is ahead of the current
// one, as no API server does.
func (f *Feed) Bookmark(path string, ahead int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.kinds[path].bookmark()
	o.SetResourceVersion(strconv.Itoa(f.revision + ahead))
	message, err := encode(o)
	if err != nil {
		return err
	}
	f.revision++
	f.logLocked(f.kinds[path], event{f.revision, frameOf(watch.Bookmark, message)})
	return nil
}

// Expire sends watches of the kind at path the error that their revision is too old (410).
func (f *Feed) Expire(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	frame, err := expired()
	if err != nil {
		return err
	}
	f.revision++
	f.logLocked(f.kinds[path], event{f.revision, frame})
	return nil
}

// Compact removes all events from the logs. A watch from an earlier revision gets the error that
// the revision is too old.
func (f *Feed) Compact() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.kinds {
		k.log, k.compacted = nil, f.revision
	}
}

// Cut breaks all requests, and further ones until Restore.
func (f *Feed) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = true
	f.cuts++
	f.wakeLocked()
}

// Restore ends Cut.
func (f *Feed) Restore() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = false
}

// Hold stops the next list of the kind at path after n objects, until release is called or the
// request ends. reached is closed when the list has stopped.
func (f *Feed) Hold(path string, n int) (reached <-chan struct{}, release func()) {
	h := &hold{path, n, make(chan struct{}), make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = h
	return h.reached, sync.OnceFunc(func() { close(h.released) })
}

func (f *Feed) kindOf(o Object) *kind {
	if _, is := o.(*corev1.Service); is {
		return f.kinds[Services]
	}
	return f.kinds[Slices]
}

func keyOf(o Object) string { return o.GetNamespace() + "/" + o.GetName() }

// encoder encodes objects as an API server does, with their envelope.
var encoder = protobuf.NewSerializer(nil, nil)

func encode(o runtime.Object) ([]byte, error) {
	var b bytes.Buffer
	if err := encoder.Encode(o, &b); err != nil {
		return nil, fmt.Errorf("encode %T: %w", o, err)
	}
	return b.Bytes(), nil
}

// frameOf returns an event of a watch, which its length precedes.
func frameOf(what watch.EventType, message []byte) []byte {
	e := metav1.WatchEvent{Type: string(what), Object: runtime.RawExtension{Raw: message}}
	frame := make([]byte, 4+e.Size())
	n, err := e.MarshalTo(frame[4:])
	if err != nil {
		panic(err) // The buffer has the size of the event.
	}
	binary.BigEndian.PutUint32(frame, uint32(n))
	return frame[:4+n]
}
