package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/site/credential"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// remote reads what a site states. It reads the head at intervals, and everything when the digest
// in the head changed.
type remote struct {
	site    string
	folder  string // of credentials
	times   timing
	changed func() // must not block
	log     *slog.Logger

	// known are names of nodes and services that are mirrored already. They have priority where a
	// bound is reached. Set them before run.
	known map[string]bool

	// Only run uses these.
	creds  *credential.Credential
	server *api.Server
	digest string
	read   time.Time // when everything was read

	mu     sync.Mutex
	view   view
	ends   time.Time // of the token
	failed error     // of the last attempt, or nil
}

// view is what a site states, as it was last read.
type view struct {
	head     *record.Head // nil until everything was read once
	nodes    map[string]record.Record
	services map[record.Key]*record.Service
	// left counts records beyond the bounds, and malformed ones. problem is a sentence about one of
	// them.
	left    int
	problem string
}

// run reads until ctx ends.
func (r *remote) run(ctx context.Context) {
	for {
		err := r.look(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // It may quote megabytes of the site's answer.
			err = errors.New(clipped(err.Error()))
		}
		r.mu.Lock()
		was := r.failed
		r.failed = err
		r.mu.Unlock()
		if (was == nil) != (err == nil) || err != nil && was.Error() != err.Error() {
			if err != nil {
				r.log.Warn("a site cannot be read; what was mirrored stays", "site", r.site,
					"problem", err)
			} else {
				r.log.Info("a site is read", "site", r.site)
			}
			r.changed()
		}

		wait := r.times.poll
		if err != nil {
			wait = r.times.retry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait + rand.N(wait/4+1)):
		}
	}
}

// look reads the head, and everything if the head changed.
func (r *remote) look(ctx context.Context) error {
	if err := r.connect(); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, r.times.request)
	defer cancel()
	kind := object.SiteRecords.In(r.creds.Namespace)
	o, err := r.server.Read(short, kind, record.NameHead)
	if err != nil {
		return r.explain("get", kind, err)
	}
	h, err := record.Decode(record.NameHead, o.Spec)
	if err != nil {
		return fmt.Errorf("the head of the site is malformed: %w", err)
	}
	if h.Head.Digest == r.digest && time.Since(r.read) < r.times.reread {
		return nil
	}

	long, cancel := context.WithTimeout(ctx, 6*r.times.request)
	defer cancel()
	b := &builder{known: r.known}
	if _, err := r.server.Get(long, kind, metav1.ListOptions{}, b.take); err != nil {
		return r.explain("list", kind, err)
	}
	v := b.finish(h.Head)
	r.mu.Lock()
	r.view = v
	r.mu.Unlock()
	r.digest, r.read, r.known = h.Head.Digest, time.Now(), b.kept
	r.changed()
	return nil
}

// explain returns err with a remedy.
func (r *remote) explain(verb string, k object.Kind, err error) error {
	return fmt.Errorf("%w; the file of site %s names the namespace %s: the other cluster must "+
		"have it, with a SiteRecord %s that its veil-site "+
		"writes", api.Explain(verb, k, err), r.site,
		r.creds.Namespace, record.NameHead)
}

// connect reads the credentials, and makes a new client if they changed.
func (r *remote) connect() error {
	c, err := credential.Read(r.folder, r.site)
	if err != nil {
		return err
	}
	if c.Equal(r.creds) {
		return nil
	}
	c.Config.Timeout = 6 * r.times.request
	s, err := api.New(c.Config, nil)
	if err != nil {
		return err
	}
	r.creds, r.server, r.digest, r.read = c, s, "", time.Time{}
	r.mu.Lock()
	r.ends = c.Ends
	r.mu.Unlock()
	return nil
}

// state returns what the site states, and a sentence about why it cannot be read, or "".
func (r *remote) state() (v view, ends time.Time, problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		problem = r.failed.Error()
	}
	return r.view, r.ends, problem
}

// builder makes a view of records while they are read.
type builder struct {
	view
	known, kept map[string]bool
	// room holds, by kind of record, how many records that are not known are within the bounds.
	room      map[string]int
	endpoints int
}

// errBound is the problem of a record beyond a bound.
var errBound = errors.New("the bound of a site is reached")

// maxName is the longest name of an object.
const maxName = 253

// take adds a record. It returns false, because nothing else keeps the record.
func (b *builder) take(o *object.Object) bool {
	if b.kept == nil {
		b.kept, b.nodes = map[string]bool{}, map[string]record.Record{}
		b.services = map[record.Key]*record.Service{}
		b.room = map[string]int{"node": record.MaxNodes, "service": record.MaxServices}
		for name := range b.known {
			b.room[record.Kind(name)]--
		}
	}
	if o.Name == record.NameHead {
		return false
	}
	r, err := record.Decode(o.Name, o.Spec)
	if err == nil && (len(o.Name) > maxName || !b.fits(o.Name, r)) {
		err = errBound
	}
	if err != nil {
		b.left++
		if b.problem == "" {
			b.problem = fmt.Sprintf("record %.80q: %v", o.Name, err)
		}
		return false
	}

	b.kept[o.Name] = true
	if r.Claim != nil {
		b.nodes[r.Node] = r
	} else {
		b.services[r.Key] = r.Service
	}
	return false
}

// fits counts a record, and reports whether it is within the bounds. Records that are not known get
// the room that the known ones leave.
func (b *builder) fits(name string, r record.Record) bool {
	if b.kept[name] {
		return false
	}
	kind := record.Kind(name)
	if r.Service != nil && b.endpoints+r.Service.Endpoints() > record.MaxAllEndpoints ||
		!b.known[name] && b.room[kind] <= 0 {
		return false
	}
	if !b.known[name] {
		b.room[kind]--
	}
	if r.Service != nil {
		b.endpoints += r.Service.Endpoints()
	}
	return true
}

func (b *builder) finish(h *record.Head) view {
	b.head = h
	return b.view
}
