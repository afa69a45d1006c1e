package link

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/site/inventory"
	"github.com/kubeveil/kubeveil/pkg/site/publish"
	"github.com/kubeveil/kubeveil/pkg/site/record"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// writes is an API server that keeps the path and the body of each request.
type writes struct {
	mu  sync.Mutex
	all []string
}

func (w *writes) ServeHTTP(r http.ResponseWriter, q *http.Request) {
	body := make([]byte, 1024)
	n, _ := q.Body.Read(body)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, q.Method+" "+q.URL.Path+" "+string(body[:n]))
	r.Header().Set("Content-Type", "application/json")
	fmt.Fprint(r, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
}

// siteOf returns site NAME with pods in 10.N.0.0/16 and nodes in 198.51.N.0/24, which states nodes.
func siteOf(name string, n, nodes int) (cluster.Site, *remote) {
	s := cluster.Site{Name: name, PodRanges: nettest.Prefixes(fmt.Sprintf("10.%d.0.0/16", n)),
		NodeRanges: nettest.Prefixes(fmt.Sprintf("198.51.%d.0/24", n))}
	v := view{head: &record.Head{Open: true}, nodes: map[string]record.Record{}}
	for i := range nodes {
		addr := s.NodeRanges[0].Addr().Next()
		node := fmt.Sprintf("node-%03d", i)
		v.nodes[node] = record.Record{Node: node, Addrs: []netip.Addr{addr}, Claim: &cluster.Claim{
			Keys:        []cluster.Key{{Public: wgkey.Public{byte(n), byte(i), byte(i >> 8)}}},
			Endpoints:   []netip.AddrPort{netip.AddrPortFrom(addr, 51820)},
			PodPrefixes: []netip.Prefix{netip.PrefixFrom(s.PodRanges[0].Addr(), 24)}}}
	}
	return s, &remote{site: name, view: v}
}

// A site that changes everything at once does not delay the change of another by more than its
// share of a round. The rest follows in the next round.
func TestChurnOfOneSiteDelaysNoOther(t *testing.T) {
	server := &writes{}
	api := httptest.NewServer(server)
	defer api.Close()
	b, stateOfB := siteOf("b", 245, 300)
	c, stateOfC := siteOf("c", 246, 1)
	l, err := New(Config{API: &rest.Config{Host: api.URL}, Cluster: "a",
		PodRanges: nettest.Prefixes("10.244.0.0/16"), NodeRanges: nettest.Prefixes("192.0.2.0/24"),
		Sites: []cluster.Site{b, c}})
	errtest.Must(t, err)
	l.remotes["b"], l.remotes["c"] = stateOfB, stateOfC
	var compared Round
	l.Compared = func(r Round) { compared = r }
	l.round(t.Context(), inventory.State{})

	of := map[string]int{}
	for _, w := range server.all {
		for _, site := range []string{"b", "c"} {
			if strings.Contains(w, "sitenodes") && strings.Contains(w, `"name":"`+site+".") {
				of[site]++
			}
		}
	}
	if of["c"] != 1 || of["b"] == 0 || of["b"] > roundWrites/2 {
		t.Errorf("in the first round %d nodes of b and %d of c are written", of["b"], of["c"])
	}
	select {
	case <-l.changed:
	default:
		t.Error("the next round does not begin at once")
	}
	if compared.Waiting != 300-of["b"] {
		t.Errorf("%d writes wait", compared.Waiting)
	}
}

// Where all nodes of a site change in each round, each is written within a few rounds, and its
// imports too.
func TestChurnOfNodesStarvesNone(t *testing.T) {
	server := &writes{}
	api := httptest.NewServer(server)
	defer api.Close()
	b, stateOfB := siteOf("b", 245, 3*roundWrites)
	b.Imports = []string{cluster.AllNamespaces}
	shop := record.Key{Namespace: "shop", Name: "web"}
	stateOfB.view.services = map[record.Key]*record.Service{shop: {V4: true}}
	l, err := New(Config{API: &rest.Config{Host: api.URL}, Cluster: "a",
		PodRanges: nettest.Prefixes("10.244.0.0/16"), NodeRanges: nettest.Prefixes("192.0.2.0/24"),
		Sites: []cluster.Site{b}})
	errtest.Must(t, err)
	l.remotes["b"] = stateOfB
	now := inventory.State{Namespaces: map[record.Key]inventory.Namespace{{Name: "shop"}: {}}}
	for range 3 {
		l.round(t.Context(), now) // No object is stored, so all are written again.
	}

	written, imports := map[string]bool{}, 0
	for _, w := range server.all {
		if _, name, is := strings.Cut(w, `"name":"b.node-`); is {
			written[name[:3]] = true
		} else if strings.Contains(w, "/serviceimports") {
			imports++
		}
	}
	if len(written) != 3*roundWrites || imports != 3 {
		t.Errorf("%d nodes and %d imports are written", len(written), imports)
	}
}

// After a write that failed, the next round waits, although writes were postponed.
func TestRoundAfterAFailureWaits(t *testing.T) {
	api := httptest.NewServer(http.NotFoundHandler())
	defer api.Close()
	b, stateOfB := siteOf("b", 245, 300)
	l, err := New(Config{API: &rest.Config{Host: api.URL}, Cluster: "a",
		PodRanges: nettest.Prefixes("10.244.0.0/16"), NodeRanges: nettest.Prefixes("192.0.2.0/24"),
		Sites: []cluster.Site{b}})
	errtest.Must(t, err)
	l.remotes["b"] = stateOfB
	l.round(t.Context(), inventory.State{})
	select {
	case <-l.changed:
		t.Error("the next round begins at once")
	default:
	}
}

// Each payer has the same share, and what is beyond it is counted.
func TestBudgetOfARound(t *testing.T) {
	b := newBudget(4)
	for range 2 * b.share {
		b.spend("b")
	}
	if b.share != roundWrites/4 || b.postponed["b"] != b.share || !b.spend("c") ||
		len(b.postponed) != 1 {
		t.Errorf("share %d, postponed %v", b.share, b.postponed)
	}
	if got := payerOfImport([]string{"c", "b"}); got != payerOfImport([]string{"b", "c"}) {
		t.Errorf("payer %q depends on the order", got)
	}
}

// Where all objects of a payer change in each round, each is written within a few rounds, also one
// that needs many writes. Another payer and removals have their own shares.
func TestBudgetStarvesNoObject(t *testing.T) {
	const share, most = 10, 12
	var keys []record.Key
	for i := range 30 {
		keys = append(keys, record.Key{Namespace: "shop", Name: fmt.Sprintf("web-%02d", i)})
	}
	payer := func(k record.Key) string {
		if k == keys[29] {
			return "c"
		}
		return "b"
	}
	needs := func(k record.Key) int {
		if k == keys[5] {
			return share + 1 // in each round
		}
		return 1
	}

	last := map[record.Key]int{}
	l := &Linker{Config: Config{Sites: make([]cluster.Site, roundWrites/share)}}
	for round := 1; round <= 5*most; round++ {
		w := l.newWriter()
		for k := range w.inTurn("test", keys, payer) {
			for range needs(k) {
				if w.spend(w.payer) {
					last[k] = round
				}
			}
		}
		for _, k := range keys {
			if round-last[k] >= most || payer(k) == "c" && last[k] < round {
				t.Fatalf("in round %d %s was last written in round %d", round, k, last[k])
			}
		}
		for k := range w.inTurn("test", keys[:1], func(record.Key) string { return removalsOf("b") }) {
			if !w.spend(w.payer) {
				t.Fatalf("%s is not removed", k)
			}
		}
		l.resume = w.ended
	}
}

// recordStore is an API server that keeps the SiteRecords of site b, and counts the writes.
type recordStore struct {
	records map[record.Key]inventory.Raw
	writes  int
}

func (s *recordStore) ServeHTTP(r http.ResponseWriter, q *http.Request) {
	var o object.Object
	json.NewDecoder(q.Body).Decode(&o)
	s.writes++
	s.records[record.Key{Namespace: o.Namespace, Name: o.Name}] = inventory.Raw{
		Meta: inventory.Meta{Version: fmt.Sprint(s.writes)}, Raw: inventory.Canonical(o.Spec)}
	r.Header().Set("Content-Type", "application/json")
	fmt.Fprint(r, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
}

// statedInRound returns what is stated to site b: a head, 30 services of shop that change in each
// round, and one of zoo that does not.
func statedInRound(t *testing.T, round int) map[string]publish.Stated {
	s := publish.Stated{Records: map[string][]byte{"service.zoo.last": []byte(`{"new":true}`)}}
	for i := range 30 {
		s.Records[fmt.Sprintf("service.shop.web-%02d", i)] = fmt.Appendf(nil, `{"round":%d}`, round)
	}
	head, err := record.Encode(record.NameHead, record.Spec{Head: &record.Head{
		Digest: fmt.Sprintf("%032d", round)}})
	errtest.Must(t, err)
	s.Records[record.NameHead] = head
	return map[string]publish.Stated{"b": s}
}

// While exports change in each round beyond the budget, the head changes in each round, and a
// change of another namespace arrives. Then the head has the digest of all records.
func TestChurnOfExportsHidesNoOther(t *testing.T) {
	store := &recordStore{records: map[record.Key]inventory.Raw{}}
	api := httptest.NewServer(store)
	defer api.Close()
	l, err := New(Config{API: &rest.Config{Host: api.URL}, Cluster: "a",
		Sites: make([]cluster.Site, 8)})
	errtest.Must(t, err)
	now := inventory.State{Namespaces: map[record.Key]inventory.Namespace{{Name: NamespacePrefix + "b"}: {}}}
	head, last := "", record.Key{Namespace: NamespacePrefix + "b", Name: "service.zoo.last"}
	round := func(n int) (digest string, written int) {
		now.Records = maps.Clone(store.records)
		w := l.newWriter()
		l.writeRecords(t.Context(), w, now, statedInRound(t, n))
		l.resume = w.ended
		raw := store.records[record.Key{Namespace: last.Namespace, Name: record.NameHead}].Raw
		r, err := record.Decode(record.NameHead, []byte(raw))
		errtest.Must(t, err)
		return r.Head.Digest, w.written
	}

	for n := range 6 {
		digest, written := round(n)
		if digest == head || written != roundWrites/8+1 {
			t.Errorf("round %d: digest %q after %q, %d writes", n, digest, head, written)
		}
		if head = digest; n >= 2 && store.records[last].Raw != `{"new":true}` {
			t.Errorf("round %d: the export of zoo is not written", n)
		}
	}
	for range 3 {
		head, _ = round(6)
	}
	if head != fmt.Sprintf("%032d", 6) {
		t.Errorf("the last digest is %q", head)
	}
}
