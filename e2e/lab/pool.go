package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
)

// mostIdle bounds the number of unused control planes in a pool. Each takes about 400 MB of memory.
const mostIdle = 3

// Pool keeps control planes of labs that have ended for later labs, because the start of an API
// server takes seconds of CPU time. In the pool, they are stopped by SIGSTOP, because an idle
// control plane takes CPU time too. The zero value is an empty pool. Methods may be called from
// several goroutines. Close ends the control planes.
//
// A lab gets a control plane of its address family, without objects of an earlier lab. At its end,
// the lab returns the control plane or ends it. It ends it in these cases:
//   - The lab had several API servers, or additional flags for API servers.
//   - The test called Control.Host, or rules of a fault are in force.
//   - etcd was restarted, or a program has ended.
//   - An object that existed before the lab's first node was changed or deleted.
type Pool struct {
	mu   sync.Mutex
	idle []*Control
}

// given is the state of a control plane before a lab adds anything.
type given struct {
	etcd *Process
	// objects are the objects that existed. Nil means that no other lab may use the control plane.
	objects apiobject.Inventory
}

// take removes a control plane for a lab from the pool and returns it. It returns nil if there is
// none that fits.
func (p *Pool) take(l *Lab) *Control {
	if p == nil || !l.opts.ordinaryServer() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.idle, func(c *Control) bool {
		return c.lab.opts.Family == l.opts.Family && c.etcd.Process.Running() &&
			c.APIServer.Running()
	})
	if i < 0 {
		return nil
	}

	c := *p.idle[i] // a copy, because the earlier lab keeps its value
	p.idle = slices.Delete(p.idle, i, i+1)
	c.lab, c.host.lab, c.given = l, l, given{}
	c.host.Env = l.env()
	if err := c.signal(syscall.SIGCONT); err != nil {
		l.log.Info("a control plane of the pool is not used", "reason", errors.Join(err, c.end()))
		return nil
	}
	return &c
}

// put deletes the objects that a lab added to its control plane, and adds the stopped control plane
// to the pool. If the objects cannot be deleted, it ends the control plane. If the pool then has
// more than mostIdle control planes, it ends the oldest.
func (p *Pool) put(c *Control) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := c.objects().DeleteAdded(ctx, c.given.objects)
	if err == nil {
		err = c.signal(syscall.SIGSTOP)
	}
	if err != nil {
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

// Close ends the control planes in the pool.
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

// ordinaryServer reports whether the lab has one API server without additional flags and with the
// usual etcd, so that other labs can use it.
func (o Options) ordinaryServer() bool {
	return o.APIServers == 1 && o.APIServerFlags == nil && !o.Streams
}

// signal sends SIGSTOP or SIGCONT to the programs.
func (c *Control) signal(s syscall.Signal) error {
	return errors.Join(c.etcd.Process.Signal(s), c.APIServer.Signal(s))
}

// end ends the host and its programs.
func (c *Control) end() error { return errors.Join(stopAll([]*Host{c.host})...) }

// returns reports whether the lab may return the control plane to its pool.
func (c *Control) returns() bool {
	return c != nil && c.given.objects != nil && !c.host.shown.Load() &&
		!c.host.filtered.Load() && c.etcd.Process == c.given.etcd && c.etcd.Process.Running() &&
		c.APIServer.Running()
}

// join connects the control plane of an earlier lab to this lab. Its artefacts stay in the folder
// of the earlier lab, and this lab's folder gets a symbolic link to them.
func (c *Control) join(ctx context.Context) error {
	if err := os.Symlink(c.host.Dir, filepath.Join(c.lab.Dir, c.host.Name)); err != nil {
		return err
	}
	if err := c.lab.plug(ctx, c.host, c.host.Name, "eth0",
		c.lab.opts.Family.Underlay(addressplan.ControlHost)); err != nil {
		return err
	}
	// A client's connection may have ended while the API server was stopped.
	if err := c.WaitReady(ctx); err != nil {
		return err
	}
	if err := c.applyManifests(ctx); err != nil {
		return err
	}
	return c.remember(ctx)
}

// remember sets c.given before the lab's first node is made, if the lab has a pool.
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

// objects returns a client for the objects of the API server.
func (c *Control) objects() apiobject.Client {
	return apiobject.Client{Kubernetes: c.Client, Dynamic: c.Dynamic}
}
