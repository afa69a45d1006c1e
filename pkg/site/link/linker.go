package link

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/site/inventory"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/publish"
	"github.com/kubeveil/kubeveil/pkg/site/record"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// NamespacePrefix begins the name of a namespace whose SiteRecords a site reads. The name of the
// site follows.
const NamespacePrefix = "kubeveil-site-"

// Config configures a Linker.
type Config struct {
	// API are the credentials of the own API server.
	API *rest.Config
	// Cluster is the name of this cluster among the sources of a service.
	Cluster string
	// PodRanges and NodeRanges are the ranges of this cluster, and Sites its sites.
	PodRanges, NodeRanges []netip.Prefix
	Sites                 []cluster.Site
	// Credentials is a folder with a kubeconfig for each site, by its name.
	Credentials string
	// Dead returns the pod prefixes of nodes of sites that do not answer. DeadUnknown returns why
	// that is not known, or "", and DeadSoon whether it will be known soon. DeadChanged receives a
	// value when a result of them has changed. All may be nil.
	Dead        func() []netip.Prefix
	DeadSoon    func() bool
	DeadUnknown func() string
	DeadChanged <-chan struct{}
	// Log receives changes and problems; nil discards them.
	Log *slog.Logger
	// Beat is called at each turn of Run and after each write, and Compared after each comparison.
	// Either may be nil. Only Run calls them.
	Beat     func()
	Compared func(Round)
}

// timing holds the times of a Linker, which tests shorten.
type timing struct {
	settle  time.Duration // wait between a change and the writes
	tick    time.Duration // longest time between two rounds
	poll    time.Duration // between two looks at a site
	retry   time.Duration // after a look that failed
	request time.Duration // timeout of a short request
	reread  time.Duration // longest time between two readings of all records
}

var defaultTiming = timing{settle: 500 * time.Millisecond, tick: 10 * time.Second,
	poll: 2 * time.Second, retry: 4 * time.Second, request: 10 * time.Second,
	reread: 5 * time.Minute}

// Linker keeps the objects of links. Call Run once.
type Linker struct {
	Config
	times   timing
	server  *api.Server
	local   *inventory.Inventory
	remotes map[string]*remote // by name of an open site
	changed chan struct{}      // holds a token if a round is needed
	rounds  uint64             // that have begun
	resume  map[string]string  // writer.ended of the last round
}

// New returns a Linker. It sends no request.
func New(c Config) (*Linker, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Beat == nil {
		c.Beat = func() {}
	}
	for _, s := range c.Sites {
		if s.Name == c.Cluster {
			return nil, fmt.Errorf("site %s has the name of this cluster: give this cluster "+
				"another name by --cluster-name", s.Name)
		}
	}
	own := rest.CopyConfig(c.API)
	own.UserAgent, own.QPS, own.Burst = "veil-site", 50, 100
	s, err := api.New(own, c.Log)
	if err != nil {
		return nil, err
	}
	l := &Linker{Config: c, times: defaultTiming, server: s, remotes: map[string]*remote{},
		changed: make(chan struct{}, 1)}
	l.local = inventory.New(c.Log, l.wake)
	return l, nil
}

// wake makes Run begin a round.
func (l *Linker) wake() { api.Poke(l.changed) }

// Run keeps the objects until ctx ends, and returns when all its goroutines have ended.
func (l *Linker) Run(ctx context.Context) {
	// The reflectors report the errors of client-go's log once, with a remedy.
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.Logger{}))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { l.local.Run(ctx, l.server) })

	for {
		l.Beat()
		wait := l.times.tick
		select {
		case <-ctx.Done():
			return
		case <-l.changed:
			wait = l.times.settle
		case <-l.DeadChanged:
			wait = l.times.settle
		case <-time.After(wait):
			wait = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		select {
		case <-l.changed:
		default:
		}
		if now, complete := l.local.Read(); complete {
			l.startRemotes(ctx, &wg, now)
			l.round(ctx, now)
		}
	}
}

// startRemotes begins to read the open sites, once the objects that are mirrored already are known.
func (l *Linker) startRemotes(ctx context.Context, wg *sync.WaitGroup, now inventory.State) {
	for _, s := range l.Sites {
		if !s.Open() || l.remotes[s.Name] != nil {
			continue
		}
		r := &remote{site: s.Name, folder: l.Credentials, times: l.times, changed: l.wake,
			log:   l.Log,
			known: map[string]bool{}}
		for k := range now.SiteNodes {
			if site, node, _ := strings.Cut(k.Name, "."); site == s.Name {
				r.known[record.NameOfNode(node)] = true
			}
		}
		for k, i := range now.Imports {
			if _, is := i.First[s.Name]; is {
				r.known[record.NameOfService(k)] = true
			}
		}
		l.remotes[s.Name] = r
		wg.Go(func() { r.run(ctx) })
	}
}

// round writes what differs.
func (l *Linker) round(ctx context.Context, now inventory.State) {
	began := time.Now()
	w := l.newWriter()
	in := l.input(now)
	stated := map[string]publish.Stated{}
	for _, s := range l.Sites {
		stated[s.Name] = publish.Plan(in, s)
	}
	l.writeRecords(ctx, w, now, stated)

	out := mirror.Plan(l.mirrorInput(now, in))
	l.writeNodes(ctx, w, now, out)
	foreign := l.writeImports(ctx, w, now, out)
	l.writeExports(ctx, w, now, in, out, stated)
	l.writeLinks(ctx, w, now, out, stated, foreign)
	l.resume = w.ended
	for what, problem := range w.failed {
		l.Log.Warn("an object cannot be written; it is tried again", "object", what, "problem",
			problem)
	}
	if len(w.postponed) > 0 {
		l.Log.Debug("writes wait for the next round", "number", w.postponed)
		if !w.refused { // What fails would be tried again without pause.
			l.wake()
		}
	}
	l.compared(began, w, out, stated)
}

// input returns what publish.Plan needs.
func (l *Linker) input(now inventory.State) publish.Input {
	in := publish.Input{PodRanges: l.PodRanges, NodeRanges: l.NodeRanges,
		Services: map[record.Key]*publish.Service{}}
	for k, n := range now.Nodes {
		n.Claim = now.VeilNodes[k]
		in.Nodes = append(in.Nodes, n)
	}
	for k, e := range now.Exports {
		if now.Unread[k] > 0 && now.Services[k].Version == "" {
			continue // It is not known whether its Service exists.
		}
		in.Exports = append(in.Exports, publish.Export{Key: k, Created: e.Created,
			Annotations: e.Annotations, CopiedLabels: e.CopiedLabels,
			CopiedAnnotations: e.CopiedAnnotations})
		if s, exists := now.Services[k]; exists {
			in.Services[k] = &publish.Service{Spec: s.Spec, Derived: s.Ours}
		}
	}

	names := slices.SortedFunc(maps.Keys(now.Slices), func(a, b record.Key) int {
		return strings.Compare(a.String(), b.String())
	})
	for _, k := range names {
		e := now.Slices[k]
		if s := in.Services[record.Key{Namespace: k.Namespace, Name: e.Service}]; s != nil &&
			!e.Ours {
			s.Slices = append(s.Slices, e.Slice)
		}
	}
	return in
}

// mirrorInput returns what mirror.Plan needs.
func (l *Linker) mirrorInput(now inventory.State, in publish.Input) mirror.Input {
	out := mirror.Input{Cluster: l.Cluster, PodRanges: l.PodRanges, NodeRanges: l.NodeRanges,
		Keys: map[wgkey.Public]bool{}, Namespaces: map[string]bool{},
		Own: map[record.Key]mirror.Own{}, Existing: map[record.Key]mirror.Existing{},
		Now: time.Now()}
	for _, claim := range now.VeilNodes {
		if claim != nil {
			for _, k := range claim.Keys {
				out.Keys[k.Public] = true
			}
		}
	}
	for k, n := range now.Namespaces {
		if !n.Ending {
			out.Namespaces[k.Name] = true
		}
	}

	for _, e := range in.Exports {
		if s := in.Services[e.Key]; s != nil && s.Exportable() == "" && out.Namespaces[e.Namespace] {
			r, _ := e.Record(s, nil)
			out.Own[e.Key] = mirror.Own{Created: e.Created, Service: r}
		}
	}
	written := writtenSlices(now)
	for k, i := range now.Imports {
		if i.Ours {
			out.Existing[k] = mirror.Existing{First: i.First, Slices: written[k],
				Service: mirror.ServiceOf(i.Object), PreferLocal: i.PreferLocal}
		}
	}
	for _, s := range l.Sites {
		site := mirror.Site{Site: s}
		if r := l.remotes[s.Name]; r != nil {
			v, _, _ := r.state()
			site.Head, site.Nodes, site.Services = v.head, v.nodes, v.services
		}
		out.Sites = append(out.Sites, site)
	}
	if l.Dead != nil {
		out.Dead = l.Dead()
	}
	out.DeadBefore = l.DeadSoon != nil && l.DeadSoon()
	return out
}

// writtenSlices returns the endpoints of imports that are written already, by source, in the order
// in which their EndpointSlices are numbered.
func writtenSlices(now inventory.State) map[record.Key]map[string][]record.Slice {
	out := map[record.Key]map[string][]record.Slice{}
	keys := slices.SortedFunc(maps.Keys(now.Slices), func(a, b record.Key) int {
		return cmp.Or(len(a.Name)-len(b.Name), strings.Compare(a.Name, b.Name))
	})
	for _, name := range keys {
		e := now.Slices[name]
		if !e.Ours {
			continue
		}
		k := record.Key{Namespace: name.Namespace, Name: e.Slice.Labels[mcs.LabelServiceName]}
		if out[k] == nil {
			out[k] = map[string][]record.Slice{}
		}
		from := e.Slice.Labels[mcs.LabelSourceCluster]
		out[k][from] = append(out[k][from], mirror.SliceOf(e.Slice))
	}
	return out
}
