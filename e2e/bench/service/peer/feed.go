package peer

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// Object is a service with its endpoints.
type Object struct {
	Service service.Service
	Slice   service.Slice
}

// Feed implements the part of an API server that a table of services needs. It sends the objects of
// each kind as a streaming list (KEP-3157) or as a list, and then serves a watch, as JSON over TLS
// on a loopback address. The initial objects are encoded before the first request.
type Feed struct {
	server *httptest.Server
	// kinds holds the objects of each kind, keyed by the path of the kind.
	kinds map[string]encoded
	// events passes events to the watch of EndpointSlices.
	events chan []byte
	ended  chan struct{}
	// version is the resource version of the last change.
	version int
	// began is the time of the first request for Services or EndpointSlices, or nil.
	began atomic.Pointer[time.Time]
}

// encoded holds all objects of a kind, as events of a watch and as a list.
type encoded struct{ events, list []byte }

// Paths of the kinds from which tables are made.
const (
	servicesPath = "/api/v1/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
)

// NodeName is the name of the feed's only Node.
const NodeName = "node"

// firstVersion is the resource version of all initial objects.
const firstVersion = 1

// NewFeed starts a Feed of plan and of a Node with the address node. It listens in the network
// namespace of the calling thread. The caller closes it.
func NewFeed(node netip.Addr, plan []Object) (*Feed, error) {
	f := &Feed{kinds: map[string]encoded{}, events: make(chan []byte), ended: make(chan struct{}),
		version: firstVersion}
	services, slices := make([]any, len(plan)), make([]any, len(plan))
	for i, o := range plan {
		services[i], slices[i] = serviceObject(o.Service), sliceObject(o.Slice, firstVersion)
	}

	for path, k := range map[string]struct {
		version, kind string
		objects       []any
	}{
		servicesPath:    {"v1", "Service", services},
		slicesPath:      {"discovery.k8s.io/v1", "EndpointSlice", slices},
		"/api/v1/nodes": {"v1", "Node", []any{nodeObject(node)}},
		"/apis/networking.k8s.io/v1/servicecidrs": {"networking.k8s.io/v1", "ServiceCIDR", nil},
	} {
		var err error
		if f.kinds[path], err = encode(k.version, k.kind, k.objects); err != nil {
			return nil, err
		}
	}

	f.server = httptest.NewUnstartedServer(f)
	f.server.EnableHTTP2 = true
	f.server.StartTLS()
	return f, nil
}

func encode(version, kind string, objects []any) (e encoded, err error) {
	var events bytes.Buffer
	items := make([]json.RawMessage, len(objects))
	for i, o := range objects {
		if items[i], err = json.Marshal(o); err != nil {
			return e, err
		}
		fmt.Fprintf(&events, "{\"type\":\"ADDED\",\"object\":%s}\n", items[i])
	}
	fmt.Fprintf(&events,
		`{"type":"BOOKMARK","object":{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d","annotations":{%q:"true"}}}}`+"\n",
		version, kind, firstVersion, metav1.InitialEventsAnnotationKey)
	list, err := json.Marshal(map[string]any{
		"apiVersion": version, "kind": kind + "List", "items": items,
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(firstVersion)},
	})
	return encoded{events.Bytes(), list}, err
}

// Close ends the watches and the server.
func (f *Feed) Close() {
	close(f.ended)
	f.server.Close()
}

// WriteConfig writes a kubeconfig for the feed.
func (f *Feed) WriteConfig(path string) error {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.server.Certificate().Raw})
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: bench
clusters: [{name: bench, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: bench, user: {token: bench}}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
`, f.server.URL, base64.StdEncoding.EncodeToString(ca)), 0o600)
}

// Began returns the time of the first request for Services or EndpointSlices, or the zero time
// before such a request.
func (f *Feed) Began() time.Time {
	if t := f.began.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// Change passes the event of a changed slice to the watch of EndpointSlices, and waits until the
// watch has taken it. sent is the time before that wait. Only one goroutine may call Change.
func (f *Feed) Change(ctx context.Context, s service.Slice) (sent time.Time, err error) {
	f.version++
	object := sliceObject(s, f.version)
	object.Annotations = triggered(time.Now())
	b, err := json.Marshal(object)
	if err != nil {
		return sent, err
	}
	event := fmt.Appendf(nil, "{\"type\":\"MODIFIED\",\"object\":%s}\n", b)

	sent = time.Now()
	select {
	case f.events <- event:
		return sent, nil
	case <-ctx.Done():
		return sent, context.Cause(ctx)
	}
}

// ServeHTTP answers lists and watches.
func (f *Feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, known := f.kinds[r.URL.Path]
	if !known || r.Method != http.MethodGet {
		http.NotFound(w, r)
		return
	}
	if r.URL.Path == servicesPath || r.URL.Path == slicesPath {
		now := time.Now()
		f.began.CompareAndSwap(nil, &now)
	}

	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	if query.Get("watch") == "" {
		_, _ = w.Write(kind.list)
		return
	}

	if query.Get("sendInitialEvents") == "true" {
		if _, err := w.Write(kind.events); err != nil {
			return
		}
	}

	events := f.events
	if r.URL.Path != slicesPath {
		events = nil
	}

	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case e := <-events:
			if _, err := w.Write(e); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-f.ended:
			return
		}
	}
}
