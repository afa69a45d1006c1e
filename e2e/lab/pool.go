package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
)

// mostIdle bounds how many control planes a pool keeps while no lab has them: each takes some 400
// MB.
const mostIdle = 3

// Pool keeps control planes of labs that have ended for labs to come. An API server that starts
// takes seconds of processor time. The zero value is an empty pool. Methods may be called from
// several goroutines. Close ends the control planes.
//
// A lab gets one of its address family, without the objects of an earlier lab. A control plane does
// not come back if the lab had several API servers or flags for them, if it saw the host, if etcd
// was started again, or if an object that was there before the lab's first node was changed or
// deleted: the lab then ends it.
type Pool struct {
	mu   sync.Mutex
	idle []*Control
}

// given is what a control plane has before a lab adds anything.
type given struct {
	etcd *Process
	// objects are the objects that were there. It is nil if no other lab may have the control plane.
	objects apiobject.Inventory
}

// take returns a control plane for a lab and removes it from the pool. Nil means that there is
// none.
func (p *Pool) take(l *Lab) *Control {
	if p == nil || !l.opts.ordinaryServer() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.idle, func(c *Control) bool {
		return c.lab.opts.Family == l.opts.Family && c.etcd.Process.Running() && c.APIServer.Running()
	})
	if i < 0 {
		return nil
	}

	c := *p.idle[i] // the earlier lab keeps its own value
	p.idle = slices.Delete(p.idle, i, i+1)
	c.lab, c.host.lab, c.given = l, l, given{}
	c.host.Env = l.env()
	return &c
}

// put makes the control plane of a lab that has ended fit for another one, or ends it.
func (p *Pool) put(c *Control) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.objects().DeleteAdded(ctx, c.given.objects); err != nil {
		c.lab.log.Info("the control plane is not used again", "reason", err)
		return c.end()
	}

	p.mu.Lock()
	p.idle = append(p.idle, c)
	var over *Control
	if len(p.idle) > mostIdle {
		over, p.idle = p.idle[0], p.idle[1:]
	}
	p.mu.Unlock()
	if over != nil {
		return over.end()
	}
	return nil
}

// Close ends the control planes that no lab has.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, c := range p.idle {
		errs = append(errs, c.end())
	}
	p.idle = nil
	return errors.Join(errs...)
}

// ordinaryServer reports whether the lab's API server is like the API server of any other lab of
// its family.
func (o Options) ordinaryServer() bool { return o.APIServers == 1 && o.APIServerFlags == nil }

// end ends the host and its programs.
func (c *Control) end() error { return errors.Join(stopAll([]*Host{c.host})...) }

// returns reports whether the control plane goes to the lab's pool when the lab ends.
func (c *Control) returns() bool {
	return c != nil && c.given.objects != nil && !c.host.shown.Load() &&
		!c.host.filtered.Load() && c.etcd.Process == c.given.etcd && c.etcd.Process.Running() &&
		c.APIServer.Running()
}

// join plugs the control plane of an earlier lab into this one. Its artefacts stay where they are;
// the lab has a link to them.
func (c *Control) join(ctx context.Context) error {
	if err := os.Symlink(c.host.Dir, filepath.Join(c.lab.Dir, c.host.Name)); err != nil {
		return err
	}
	if err := c.lab.plug(ctx, c.host, c.host.Name, "eth0",
		c.lab.opts.Family.Underlay(addressplan.ControlHost)); err != nil {
		return err
	}
	if err := c.applyManifests(ctx); err != nil {
		return err
	}
	return c.remember(ctx)
}

// remember notes what is there before the lab's first node, if the lab has a pool.
func (c *Control) remember(ctx context.Context) error {
	if c.lab.opts.Pool == nil || !c.lab.opts.ordinaryServer() {
		return nil
	}
	objects, err := c.objects().List(ctx)
	if err != nil {
		return err
	}
	c.given = given{c.etcd.Process, objects}
	return nil
}

// objects returns the client of the API server's objects.
func (c *Control) objects() apiobject.Client {
	return apiobject.Client{Kubernetes: c.Client, Dynamic: c.Dynamic}
}
