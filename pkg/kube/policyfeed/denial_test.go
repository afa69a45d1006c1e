package policyfeed

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

const (
	shopEventsPath    = "/api/v1/namespaces/shop/events"
	defaultEventsPath = "/api/v1/namespaces/default/events"
)

// eventServer is an API server that keeps Events, by path and name.
type eventServer struct {
	url string

	mu     sync.Mutex
	kept   map[string]map[string]map[string]any
	posts  map[string]int
	refuse map[string]int // path to HTTP status
}

func newEventServer(t *testing.T) *eventServer {
	f := &eventServer{kept: map[string]map[string]map[string]any{}, posts: map[string]int{},
		refuse: map[string]int{}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	f.url = s.URL
	return f
}

func (f *eventServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var e map[string]any
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	name := e["metadata"].(map[string]any)["name"].(string)

	f.mu.Lock()
	defer f.mu.Unlock()
	path := r.URL.Path
	f.posts[path]++
	code, reason := http.StatusCreated, ""
	if _, has := f.kept[path][name]; has {
		code, reason = http.StatusConflict, "AlreadyExists"
	}
	if refused := f.refuse[path]; refused != 0 {
		code, reason = refused, map[int]string{403: "Forbidden", 404: "NotFound"}[refused]
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if reason != "" {
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1",
			"status": "Failure", "reason": reason, "code": code})
		return
	}
	if f.kept[path] == nil {
		f.kept[path] = map[string]map[string]any{}
	}
	f.kept[path][name] = e
	_ = json.NewEncoder(w).Encode(e)
}

// setRefuse answers requests at a path with a status; 0 ends that.
func (f *eventServer) setRefuse(path string, code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse[path] = code
}

// count returns how many requests came to a path.
func (f *eventServer) count(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.posts[path]
}

// events returns the Events below a path.
func (f *eventServer) events(path string) []map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.kept[path]))
}

// denial returns a denial of a NetworkPolicy in the namespace shop.
func denial(name, uid string, generation int64) policy.Denial {
	return policy.Denial{Name: policy.Name{Namespace: "shop", Name: name},
		Object: policy.Object{UID: uid, Generation: generation}, Problem: "why"}
}

// sayer returns the eventSayer of a new daemon.
func sayer(t *testing.T, f *eventServer, node string) *eventSayer {
	t.Helper()
	s, err := api.New(&rest.Config{Host: f.url}, nil)
	errtest.Must(t, err)
	s.Times.RetryMax = 20 * time.Millisecond
	d := NewDenials(s, node)
	d.again, d.spread = time.Hour, 0
	return &eventSayer{denials: d, said: map[policy.Name]saidEvent{}, perSecond: 0.001}
}

func TestDenialBecomesOneEventForEachRevision(t *testing.T) {
	f := newEventServer(t)
	s := sayer(t, f, "node-1")
	posts, kept := 0, 0
	say := func(when string, s *eventSayer, post, keep int, denials ...policy.Denial) {
		t.Helper()
		s.denials.Set(denials)
		if wait := s.say(t.Context()); wait <= 0 || wait > s.denials.again {
			t.Errorf("%s: it wants to be called again in %s", when, wait)
		}
		posts, kept = posts+post, kept+keep
		if got, all := f.count(shopEventsPath), f.events(shopEventsPath); got != posts ||
			len(all) != kept {
			t.Errorf("%s: %d requests and %d events, want %d and %d", when, got, len(all), posts,
				kept)
		}
	}

	say("nothing", s, 0, 0)
	say("a policy", s, 1, 1, denial("web", "u1", 1))
	say("the same", s, 0, 0, denial("web", "u1", 1))
	say("another one", s, 1, 1, denial("api", "u2", 1), denial("web", "u1", 1))
	say("another revision", s, 1, 1, denial("web", "u1", 2))
	say("written again", s, 1, 1, denial("web", "u3", 2))
	say("mended", s, 0, 0)
	say("a daemon that restarted", sayer(t, f, "node-1"), 1, 0, denial("web", "u3", 2))
	say("another node", sayer(t, f, "node-2"), 1, 0, denial("web", "u3", 2))
	say("it found the Event", s, 0, 0)

	s.denials.again = 0 // The API server forgets Events after an hour.
	s.denials.Set([]policy.Denial{denial("web", "u3", 2)})
	s.say(t.Context())
	f.mu.Lock()
	clear(f.kept[shopEventsPath])
	f.mu.Unlock()
	s.say(t.Context())
	if n := len(f.events(shopEventsPath)); n != 1 {
		t.Errorf("%d events after the API server forgot them, want 1", n)
	}
}

// A bad edit of a policy causes one Event, regardless of the number of nodes, and one request per
// node.
func TestNodesCreateOneEventTogether(t *testing.T) {
	f := newEventServer(t)
	const nodes = 20
	var wg sync.WaitGroup
	for i := range nodes {
		s := sayer(t, f, fmt.Sprint("node-", i))
		s.denials.Set([]policy.Denial{denial("web", "u1", 1)})
		wg.Go(func() {
			for range 3 {
				s.say(t.Context())
			}
		})
	}
	wg.Wait()
	if got, all := f.count(shopEventsPath), f.events(shopEventsPath); got != nodes ||
		len(all) != 1 {
		t.Errorf("%d requests and %d events, want %d and 1", got, len(all), nodes)
	}
}

// Nodes that see an edit at the same moment do not all send a request at once.
func TestNodesSpreadTheirRequestsAboutAnEvent(t *testing.T) {
	f := newEventServer(t)
	s := sayer(t, f, "node-1")
	s.denials.spread = time.Hour
	s.denials.Set([]policy.Denial{denial("web", "u1", 1)})
	delay := s.denials.delay(policy.Object{UID: "u1", Generation: 1})
	if wait := s.say(t.Context()); delay == 0 || wait > delay || f.count(shopEventsPath) > 0 {
		t.Errorf("delay %s, waits %s, %d requests", delay, wait, f.count(shopEventsPath))
	}
	s.denials.Set(nil)
	if wait := s.say(t.Context()); wait != s.denials.again {
		t.Errorf("mended before its time: waits %s", wait)
	}

	// The revision decides too: it is not always the same nodes that are first.
	for generation := range int64(3) {
		const nodes, parts = 1000, 10
		var at [parts]int
		for i := range nodes {
			d := &Denials{node: fmt.Sprintf("node-%d", i), spread: parts}
			at[d.delay(policy.Object{UID: "u1", Generation: generation})]++
		}
		if slices.Max(at[:]) > 2*nodes/parts {
			t.Errorf("generation %d: nodes by tenths of the time: %v", generation, at)
		}
	}
}

func TestEventNamesPolicyAndNode(t *testing.T) {
	f := newEventServer(t)
	s := sayer(t, f, "node-1")
	long := denial("web", "u1", 1)
	long.Problem = strings.Repeat("ü", maxMessage)
	cluster := policy.Denial{Name: policy.Name{Name: "guests"},
		Object: policy.Object{UID: "u2", Generation: 1}, Problem: "rule 1"}
	s.denials.Set([]policy.Denial{cluster, long})
	s.say(t.Context())

	shop, all := f.events(shopEventsPath), f.events(defaultEventsPath)
	if len(shop) != 1 || len(all) != 1 {
		t.Fatalf("events %v and %v, want one each", shop, all)
	}
	about := shop[0]["involvedObject"].(map[string]any)
	if about["kind"] != "NetworkPolicy" || about["name"] != "web" || about["namespace"] != "shop" ||
		about["uid"] != "u1" || about["apiVersion"] != "networking.k8s.io/v1" {
		t.Errorf("the event is about %v", about)
	}
	if text := shop[0]["message"].(string); len(text) > 1024 || !utf8.ValidString(text) ||
		!strings.HasPrefix(text, "On node node-1: ü") {
		t.Errorf("message of %d bytes: %q", len(text), text)
	}
	about = all[0]["involvedObject"].(map[string]any)
	if about["kind"] != "ClusterNetworkPolicy" || about["name"] != "guests" ||
		about["namespace"] != nil || all[0]["type"] != "Warning" ||
		all[0]["message"] != "On node node-1: rule 1" || all[0]["reason"] != eventReason {
		t.Errorf("event %v", all[0])
	}
}

// A tenant who writes policies cannot make a node flood the API server.
func TestEventsOfANodeAreBounded(t *testing.T) {
	f := newEventServer(t)
	s := sayer(t, f, "node-1")
	var many []policy.Denial
	for i := range 3 * eventBurst {
		many = append(many, denial(fmt.Sprint("p-", i), fmt.Sprint("u-", i), 1))
	}
	s.denials.Set(many)
	for range 3 {
		if wait := s.say(t.Context()); wait != eventEvery {
			t.Errorf("it wants to be called again in %s, want %s", wait, eventEvery)
		}
	}
	if got := f.count(shopEventsPath); got != eventBurst {
		t.Errorf("%d requests, want %d", got, eventBurst)
	}

	// Events of policies outside that namespace are created all the same.
	guests := denial("guests", "u", 1)
	guests.Namespace = ""
	s.denials.Set(append(many, guests))
	s.say(t.Context())
	if got := f.count(defaultEventsPath); got != 1 {
		t.Errorf("%d requests about a policy outside the namespace, want 1", got)
	}
}

// A namespace in which the API server refuses Events, for example by a quota, delays no other. It
// is a problem until an Event is created.
func TestRefusedEventsDelayNoOtherNamespace(t *testing.T) {
	f := newEventServer(t)
	f.setRefuse(shopEventsPath, 403)
	s := sayer(t, f, "node-1")
	guests := denial("guests", "u3", 1)
	guests.Namespace = ""
	s.denials.Set([]policy.Denial{denial("api", "u1", 1), denial("web", "u2", 1), guests})
	for i := range eventBurst + 2 { // More turns than the namespace has tokens.
		if s.say(t.Context()); f.count(shopEventsPath) != min(i+1, eventBurst) {
			t.Errorf("turn %d: %d requests in all, want one per turn", i, f.count(shopEventsPath))
		}
		if n := len(f.events(defaultEventsPath)); n != 1 {
			t.Errorf("turn %d: %d Events in another namespace, want 1", i, n)
		}
		if p := s.denials.server.Problems(); len(p) != 1 {
			t.Errorf("turn %d: problems %q", i, p)
		}
	}
}

func TestEventsThatAreRefusedAreAProblem(t *testing.T) {
	f := newEventServer(t)
	f.setRefuse(shopEventsPath, 403)
	d := sayer(t, f, "node-1").denials
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = d.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })

	d.Set([]policy.Denial{denial("web", "u1", 1)})
	nettest.Until(t, 10*time.Second, "a problem", func() bool {
		p := d.server.Problems()
		return len(p) == 1 && strings.Contains(p[0], "may not create events") &&
			strings.Contains(p[0], object.PolicyRights)
	})
	f.setRefuse(shopEventsPath, 0)
	nettest.Until(t, 10*time.Second, "the event, and no problem", func() bool {
		return len(f.events(shopEventsPath)) == 1 && len(d.server.Problems()) == 0
	})

	// A namespace that is gone needs no Event.
	f.setRefuse(shopEventsPath, 404)
	d.Set([]policy.Denial{denial("other", "u2", 1)})
	nettest.Until(t, 10*time.Second, "another request", func() bool {
		return f.count(shopEventsPath) > 2 && len(d.server.Problems()) == 0
	})
}
