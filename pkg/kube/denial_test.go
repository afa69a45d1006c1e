package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

const (
	shopEventsPath    = "/api/v1/namespaces/shop/events"
	defaultEventsPath = "/api/v1/namespaces/default/events"
)

// denial returns a denial of a NetworkPolicy in the namespace shop.
func denial(name, uid string, generation int64) policy.Denial {
	return policy.Denial{Name: policy.Name{Namespace: "shop", Name: name},
		Object: policy.Object{UID: uid, Generation: generation}, Problem: "why"}
}

// sayer returns the eventSayer of a new daemon.
func sayer(t *testing.T, f *fakeServer, node string) *eventSayer {
	t.Helper()
	c, err := newClient(Options{Node: node}, f.config())
	if err != nil {
		t.Fatal(err)
	}
	c.times = quick
	return &eventSayer{client: c, said: map[policy.Name]saidEvent{}, perSecond: 0.001}
}

// events returns the Events below the path of a namespace.
func (f *fakeServer) events(path string) (out []map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.objects[path] {
		out = append(out, o)
	}
	return out
}

func TestDenialBecomesOneEventForEachRevision(t *testing.T) {
	f := newFakeServer(t)
	s := sayer(t, f, "node-1")
	posts, kept := 0, 0
	say := func(when string, s *eventSayer, post, keep int, denials ...policy.Denial) {
		t.Helper()
		s.client.Deny(denials)
		if wait := s.say(t.Context()); wait <= 0 || wait > s.client.times.again {
			t.Errorf("%s: it wants to be called again in %s", when, wait)
		}
		posts, kept = posts+post, kept+keep
		if got, all := f.count("POST "+shopEventsPath), f.events(shopEventsPath); got != posts ||
			len(all) != kept {
			t.Errorf("%s: %d requests and %d events, want %d and %d", when, got, len(all), posts, kept)
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

	s.client.times.again = 0 // The API server forgets Events after an hour.
	s.client.Deny([]policy.Denial{denial("web", "u3", 2)})
	s.say(t.Context())
	f.mu.Lock()
	clear(f.objects[shopEventsPath])
	f.mu.Unlock()
	s.say(t.Context())
	if n := len(f.events(shopEventsPath)); n != 1 {
		t.Errorf("%d events after the API server forgot them, want 1", n)
	}
}

// A bad edit is one Event, however many nodes see it, and one request per node.
func TestNodesCreateOneEventTogether(t *testing.T) {
	f := newFakeServer(t)
	const nodes = 20
	var wg sync.WaitGroup
	for i := range nodes {
		s := sayer(t, f, fmt.Sprint("node-", i))
		s.client.Deny([]policy.Denial{denial("web", "u1", 1)})
		wg.Go(func() {
			for range 3 {
				s.say(t.Context())
			}
		})
	}
	wg.Wait()
	if got, all := f.count("POST "+shopEventsPath), f.events(shopEventsPath); got != nodes ||
		len(all) != 1 {
		t.Errorf("%d requests and %d events, want %d and 1", got, len(all), nodes)
	}
}

// Nodes that see an edit at the same moment do not all send a request at once.
func TestNodesSpreadTheirRequestsAboutAnEvent(t *testing.T) {
	f := newFakeServer(t)
	s := sayer(t, f, "node-1")
	s.client.times.eventSpread = time.Hour
	s.client.Deny([]policy.Denial{denial("web", "u1", 1)})
	delay := s.client.eventDelay(policy.Object{UID: "u1", Generation: 1})
	if wait := s.say(t.Context()); delay == 0 || wait > delay || f.count("POST "+shopEventsPath) > 0 {
		t.Errorf("delay %s, waits %s, %d requests", delay, wait, f.count("POST "+shopEventsPath))
	}
	s.client.Deny(nil)
	if wait := s.say(t.Context()); wait != s.client.times.again {
		t.Errorf("mended before its time: waits %s", wait)
	}

	// The revision decides too: it is not always the same nodes that are first.
	for generation := range int64(3) {
		const nodes, parts = 1000, 10
		var at [parts]int
		for i := range nodes {
			c := &Client{node: fmt.Sprintf("node-%d", i), times: timing{eventSpread: parts}}
			at[c.eventDelay(policy.Object{UID: "u1", Generation: generation})]++
		}
		if slices.Max(at[:]) > 2*nodes/parts {
			t.Errorf("generation %d: nodes by tenths of the time: %v", generation, at)
		}
	}
}

func TestEventNamesPolicyAndNode(t *testing.T) {
	f := newFakeServer(t)
	s := sayer(t, f, "node-1")
	long := denial("web", "u1", 1)
	long.Problem = strings.Repeat("ü", maxMessage)
	cluster := policy.Denial{Name: policy.Name{Name: "guests"},
		Object: policy.Object{UID: "u2", Generation: 1}, Problem: "rule 1"}
	s.client.Deny([]policy.Denial{cluster, long})
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

// A tenant who writes policies cannot have a node flood the API server.
func TestEventsOfANodeAreBounded(t *testing.T) {
	f := newFakeServer(t)
	s := sayer(t, f, "node-1")
	var many []policy.Denial
	for i := range 3 * eventBurst {
		many = append(many, denial(fmt.Sprint("p-", i), fmt.Sprint("u-", i), 1))
	}
	s.client.Deny(many)
	for range 3 {
		if wait := s.say(t.Context()); wait != eventEvery {
			t.Errorf("it wants to be called again in %s, want %s", wait, eventEvery)
		}
	}
	if got := f.count("POST " + shopEventsPath); got != eventBurst {
		t.Errorf("%d requests, want %d", got, eventBurst)
	}

	// Events of policies outside that namespace are created all the same.
	guests := denial("guests", "u", 1)
	guests.Namespace = ""
	s.client.Deny(append(many, guests))
	s.say(t.Context())
	if got := f.count("POST " + defaultEventsPath); got != 1 {
		t.Errorf("%d requests about a policy outside the namespace, want 1", got)
	}
}

func TestEventsThatAreRefusedAreAProblem(t *testing.T) {
	f := newFakeServer(t)
	f.setRefuse("POST "+shopEventsPath, 403)
	c := sayer(t, f, "node-1").client
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.RunDenials(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })

	c.Deny([]policy.Denial{denial("web", "u1", 1)})
	nettest.Until(t, 10*time.Second, "a problem", func() bool {
		p := c.Problems()
		return len(p) == 1 && strings.Contains(p[0], "may not create events") &&
			strings.Contains(p[0], policyRights)
	})
	f.setRefuse("POST "+shopEventsPath, 0)
	nettest.Until(t, 10*time.Second, "the event, and no problem", func() bool {
		return len(f.events(shopEventsPath)) == 1 && len(c.Problems()) == 0
	})

	// A namespace that is gone needs no Event.
	f.setRefuse("POST "+shopEventsPath, 404)
	c.Deny([]policy.Denial{denial("other", "u2", 1)})
	nettest.Until(t, 10*time.Second, "another request", func() bool {
		return f.count("POST "+shopEventsPath) > 2 && len(c.Problems()) == 0
	})
}
