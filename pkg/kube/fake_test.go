package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
)

// fakeServer is a small API server: lists, streams, watches and writes the three
// kinds, with resource versions and preconditions. It is reached through pipes, not a network.
type fakeServer struct {
	t    *testing.T
	http http.Server

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]map[string]any // by collection path and name
	watchers map[chan event]watcher
	past     map[string][]event // all that happened, by collection path
	conns    map[net.Conn]bool
	away     bool
	// noProto makes the server answer in JSON only, like a server behind a proxy without protobuf.
	noProto  bool
	noStream bool           // refuse streaming lists, as old servers do
	pruned   []string       // fields of spec that the schema does not know, and that are dropped
	refuse   map[string]int // "VERB collection" to HTTP status
	writes   map[string]int // "VERB collection" to count
	// before, if not nil, is called with "VERB collection/name" before a request for one object is
	// answered.
	before func(what string)
	slow   time.Duration // before each answer
	// caches, if not nil, has the revision of the cache of each kind, by collection path. A list of
	// a later revision waits for the cache, 3 s at most, as in kube-apiserver (cacher).
	caches map[string]int
	accept chan net.Conn
	done   chan struct{}
	ended  chan struct{} // closed when the watches end
	deaf   bool          // no watch sees what changes
	// lags, if not nil, is the content of the server's cache.
	lags *backup
}

// watcher is a watch: of a collection path, after a revision.
type watcher struct {
	path  string
	since int
}

type event struct {
	Type   string         `json:"type"`
	Object map[string]any `json:"object"`
}

const (
	nodesPath        = "/api/v1/nodes"
	veilNodesPath    = "/apis/kubeveil.io/v1alpha1/veilnodes"
	siteNodesPath    = "/apis/kubeveil.io/v1alpha1/sitenodes"
	slicesPath       = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	servicesPath     = "/api/v1/services"
	apiServicesPath  = "/api/v1/namespaces/default/services"
	serviceCIDRsPath = "/apis/networking.k8s.io/v1/servicecidrs"
	allSlicesPath    = "/apis/discovery.k8s.io/v1/endpointslices"
	exportsPath      = "/apis/multicluster.x-k8s.io/v1beta1/serviceexports"
)

// kinds holds version and name of each watched kind, by collection path.
var kinds = func() map[string][2]string {
	all := map[string][2]string{}
	for _, k := range watchedKinds {
		all[k.Path] = [2]string{k.Version.String(), k.Kind}
	}
	return all
}()

func newFakeServer(t *testing.T) *fakeServer {
	f := &fakeServer{
		t: t, version: 1, objects: map[string]map[string]map[string]any{},
		watchers: map[chan event]watcher{}, past: map[string][]event{}, conns: map[net.Conn]bool{},
		refuse: map[string]int{}, writes: map[string]int{}, accept: make(chan net.Conn),
		done: make(chan struct{}), ended: make(chan struct{}),
	}
	for path := range kinds {
		f.objects[path] = map[string]map[string]any{}
	}
	f.http.Handler = f
	go func() { _ = f.http.Serve(f) }()
	t.Cleanup(func() { _ = f.http.Close() })
	return f
}

// Accept, Close and Addr make it the listener of its own server.
func (f *fakeServer) Accept() (net.Conn, error) {
	select {
	case c := <-f.accept:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

func (f *fakeServer) Close() error {
	select {
	case <-f.done:
	default:
		close(f.done)
	}
	return nil
}

func (f *fakeServer) Addr() net.Addr { return &net.UnixAddr{Name: "fake"} }

func (f *fakeServer) config() *rest.Config {
	return &rest.Config{Host: "http://198.18.0.1:6443",
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			f.mu.Lock()
			away := f.away
			f.mu.Unlock()
			if away {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			near, far := net.Pipe()
			select {
			case f.accept <- far:
			case <-f.done:
				return nil, net.ErrClosed
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			f.mu.Lock()
			f.conns[near] = true
			f.mu.Unlock()
			return near, nil
		}}
}

// setAway makes the server unreachable and closes its connections, or makes it reachable again.
func (f *fakeServer) setAway(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
	if away {
		for c := range f.conns {
			_ = c.Close()
		}
		clear(f.conns)
	}
}

func (f *fakeServer) setRefuse(what string, code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse[what] = code
}

func (f *fakeServer) count(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes[what]
}

// backup is the state of a fakeServer.
type backup struct {
	version int
	objects map[string]map[string]map[string]any
	past    map[string][]event
}

// backup returns the present state.
func (f *fakeServer) backup() *backup {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := &backup{f.version, map[string]map[string]map[string]any{}, maps.Clone(f.past)}
	for path, objects := range f.objects {
		b.objects[path] = maps.Clone(objects)
	}
	return b
}

// endWatches ends all watches, as a server does that stops.
func (f *fakeServer) endWatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endWatchesLocked()
}

func (f *fakeServer) endWatchesLocked() {
	close(f.ended)
	f.ended = make(chan struct{})
	clear(f.watchers)
}

// restore replaces the state by b, like a restore of etcd: all watches end, and the server uses the
// same revisions for a second time.
func (f *fakeServer) restore(b *backup) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version, f.objects, f.past = b.version, b.objects, b.past
	f.endWatchesLocked()
}

// put stores an object and sends it to the watchers.
func (f *fakeServer) put(path string, o map[string]any) map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.putLocked(path, o)
}

func (f *fakeServer) putLocked(path string, o map[string]any) map[string]any {
	f.version++
	if spec, ok := o["spec"].(map[string]any); ok {
		for _, field := range f.pruned {
			delete(spec, field)
		}
	}
	o["apiVersion"], o["kind"] = kinds[path][0], kinds[path][1]
	m := o["metadata"].(map[string]any)
	name := m["name"].(string)
	m["resourceVersion"] = strconv.Itoa(f.version)
	typ := "ADDED"
	if old, has := f.objects[path][name]; has {
		typ = "MODIFIED"
		m["uid"] = old["metadata"].(map[string]any)["uid"]
	} else if m["uid"] == nil {
		m["uid"] = fmt.Sprintf("uid-%d", f.version)
	}
	f.objects[path][name] = o
	f.tellLocked(path, event{typ, o})
	return o
}

func (f *fakeServer) remove(path, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeLocked(path, name)
}

func (f *fakeServer) removeLocked(path, name string) {
	if o, has := f.objects[path][name]; has {
		f.version++
		o = maps.Clone(o)
		m := maps.Clone(o["metadata"].(map[string]any))
		m["resourceVersion"] = strconv.Itoa(f.version)
		o["metadata"] = m
		delete(f.objects[path], name)
		f.tellLocked(path, event{"DELETED", o})
	}
}

func (f *fakeServer) tellLocked(path string, e event) {
	if f.deaf {
		return
	}
	f.past[path] = append(f.past[path], e)
	if f.caches != nil {
		f.caches[path] = f.version
	}
	for ch, w := range f.watchers {
		if w.path == path && revisionOf(e.Object) > w.since {
			ch <- e
		}
	}
}

// revisionOf returns the resource version of an object.
func revisionOf(o map[string]any) int {
	n, _ := strconv.Atoi(o["metadata"].(map[string]any)["resourceVersion"].(string))
	return n
}

func (f *fakeServer) object(path, name string) map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[path][name]
}

func status(w http.ResponseWriter, code int) {
	reason := map[int]string{404: "NotFound", 403: "Forbidden", 401: "Unauthorized",
		409: "Conflict", 422: "Invalid", 500: "InternalError"}[code]
	refused(w, code, reason)
}

// tooLarge answers a request for a list that is not older than a future revision.
func tooLarge(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusGatewayTimeout)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1",
		"status": "Failure", "reason": "Timeout", "code": http.StatusGatewayTimeout,
		"message": "Too large resource version", "details": map[string]any{"causes": []any{
			map[string]any{"reason": "ResourceVersionTooLarge"}}}})
}

func refused(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1",
		"status": "Failure", "reason": reason, "code": code, "message": reason})
}

// clusterWide returns the path of the objects of all namespaces for a path of one namespace, unless
// the server has such a path of its own.
func clusterWide(path string) string {
	before, after, namespaced := strings.Cut(path, "/namespaces/")
	_, resource, _ := strings.Cut(after, "/")
	if _, known := kinds[before+"/"+resource]; !namespaced || !known || kinds[path][0] != "" {
		return path
	}
	return before + "/" + resource
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, name := clusterWide(r.URL.Path), ""
	if _, known := kinds[path]; !known {
		i := strings.LastIndex(path, "/")
		path, name = path[:i], path[i+1:]
	}
	f.mu.Lock()
	code := f.refuse[r.Method+" "+path]
	f.writes[r.Method+" "+path]++
	before, slow := f.before, f.slow
	f.mu.Unlock()
	time.Sleep(slow)

	if before != nil && name != "" {
		before(r.Method + " " + path + "/" + name)
	}
	switch _, known := kinds[path]; {
	case code != 0:
		status(w, code)
	case !known:
		status(w, http.StatusNotFound)
	case r.Method == http.MethodGet && name == "" && r.URL.Query().Get("watch") != "":
		f.watch(w, r, path)
	case r.Method == http.MethodGet && name == "":
		f.list(w, r, path)
	default:
		f.one(w, r, path, name)
	}
}

func (f *fakeServer) list(w http.ResponseWriter, r *http.Request, path string) {
	f.mu.Lock()
	objects, version := f.objects[path], f.version
	asked := r.URL.Query().Get("resourceVersion")
	if f.lags != nil && asked != "" {
		// A server that lags serves any list but a quorum read from its cache.
		objects, version = f.lags.objects[path], f.lags.version
	}
	items := slices.DeleteFunc(slices.Collect(maps.Values(objects)),
		func(o map[string]any) bool { return !wanted(r, o) })
	f.mu.Unlock()
	if least, _ := strconv.Atoi(asked); least > version || f.lacks(path, least) {
		tooLarge(w)
		return
	}
	list := map[string]any{
		"apiVersion": kinds[path][0], "kind": kinds[path][1] + "List", "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(version)},
	}
	if f.inProtobuf(r, path) {
		w.Header().Set("Content-Type", protobufType)
		_, _ = w.Write(f.toProtobuf(list, protoTypes[path].list()))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

func (f *fakeServer) watch(w http.ResponseWriter, r *http.Request, path string) {
	stream := r.URL.Query().Get("sendInitialEvents") == "true"
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	ch := make(chan event, 10000)
	behind := stream && !f.noStream && f.lacks(path, since)
	f.mu.Lock()
	switch {
	case stream && f.noStream:
		f.mu.Unlock()
		status(w, http.StatusUnprocessableEntity)
		return
	case behind, stream && since > f.version:
		f.mu.Unlock()
		tooLarge(w)
		return
	}

	if !stream {
		for _, e := range f.past[path] {
			if revisionOf(e.Object) > since {
				ch <- e
			}
		}
	}
	if stream {
		if f.caches != nil {
			f.caches[path] = f.version // the server asks etcd how far it is
		}
		for _, o := range f.objects[path] {
			ch <- event{"ADDED", o}
		}
		ch <- event{"BOOKMARK", map[string]any{"apiVersion": kinds[path][0], "kind": kinds[path][1],
			"metadata": map[string]any{
				"resourceVersion": strconv.Itoa(f.version),
				"annotations":     map[string]any{"k8s.io/initial-events-end": "true"}}}}
	}

	f.watchers[ch] = watcher{path, since}
	ended := f.ended
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.watchers, ch)
		f.mu.Unlock()
	}()

	encode := f.encoder(w, r, path)
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case e := <-ch:
			if e.Type != "BOOKMARK" && !wanted(r, e.Object) {
				continue
			}
			if encode(e) != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-ended:
			return
		case <-f.done:
			return
		}
	}
}

// lacks reports whether the cache of a kind has not reached a revision after 3 s.
func (f *fakeServer) lacks(path string, least int) bool {
	has := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.caches == nil || least <= f.caches[path]
	}
	if has() {
		return false
	}
	time.Sleep(3 * time.Second)
	return !has()
}

// wanted reports whether the field selector of a request, which is by name, chooses an object.
func wanted(r *http.Request, o map[string]any) bool {
	name, has := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	return !has || name == o["metadata"].(map[string]any)["name"]
}

// one serves requests for one object.
func (f *fakeServer) one(w http.ResponseWriter, r *http.Request, path, name string) {
	var body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&body)
	code, answer := f.change(r.Method, path, name, body)
	if code == http.StatusConflict && r.Method == http.MethodPost {
		refused(w, code, "AlreadyExists")
		return
	}
	if code != http.StatusOK {
		status(w, code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (f *fakeServer) change(method, path, name string, body map[string]any) (int, map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if method == http.MethodPost {
		name = body["metadata"].(map[string]any)["name"].(string)
	}

	old, has := f.objects[path][name]
	switch {
	case has && method == http.MethodPost:
		return http.StatusConflict, nil
	case !has && method != http.MethodPost:
		return http.StatusNotFound, nil
	}

	switch method {
	case http.MethodPost:
		return http.StatusOK, f.putLocked(path, body)
	case http.MethodPut:
		if body["metadata"].(map[string]any)["resourceVersion"] !=
			old["metadata"].(map[string]any)["resourceVersion"] {
			return http.StatusConflict, nil
		}
		return http.StatusOK, f.putLocked(path, body)
	case http.MethodDelete:
		if p, ok := body["preconditions"].(map[string]any); ok &&
			p["uid"] != old["metadata"].(map[string]any)["uid"] {
			return http.StatusConflict, nil
		}
		f.removeLocked(path, name)
	}

	return http.StatusOK, old
}

// quicken shortens the times of a client for tests.
func quicken(c *Client) {
	c.times = quick
	c.server.Times = api.Times{Request: 5 * time.Second, RetryMin: 5 * time.Millisecond,
		RetryMax: 20 * time.Millisecond, Reread: 5 * time.Millisecond,
		Unserved: 20 * time.Millisecond, Single: 5 * time.Millisecond, Fit: 5 * time.Millisecond}
}

var quick = timing{
	coalesce: 20 * time.Millisecond, orphanTick: 10 * time.Millisecond,
	orphanGrace: 50 * time.Millisecond, lookup: time.Hour, confirm: 50 * time.Millisecond,
	silentTick: time.Millisecond, silentSpread: time.Millisecond,
}
