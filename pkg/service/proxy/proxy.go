package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

const (
	// retryMin and retryMax bound the pause after writes that could not be made.
	retryMin, retryMax = 100 * time.Millisecond, 10 * time.Second
	// abortPause is the least time between two looks for UDP sockets, which cost a walk over every
	// namespace.
	abortPause = 200 * time.Millisecond
	// abortAgain is when they are looked for once more: a socket may have been connecting.
	abortAgain = 2 * time.Second
	// rounds bounds the plans of one turn; the next begins at once.
	rounds = 8
	// settled is how long after changes problems and sizes are looked for: to look costs a walk
	// over all that is wrong.
	settled = 3 * time.Second
	// listenEvery is how often a healthCheckNodePort that another program has is tried again.
	listenEvery = 2 * time.Second
)

// Table is the table in the kernel; pkg/service/table has it. Only one goroutine calls it.
type Table interface {
	// State reads what is in the maps.
	State() (service.State, error)
	// Apply writes changes in their order. After an error State says what was written.
	Apply(changes service.Changes) error
	// Attach puts the programs in force that read the maps, or brings those that are there up to
	// date.
	Attach() error
	// Fresh reports whether programs are in force whose table could not be taken over: ours lacks
	// what they serve.
	Fresh() bool
	// Given returns the backends that sockets were given for some frontends, by earlier processes
	// too.
	Given(frontends []netip.AddrPort) ([]netip.AddrPort, error)
}

// Options are what a Proxy is made from.
type Options struct {
	// Node is this node's name in Kubernetes.
	Node string
	// Limits are the sizes of the Table's maps.
	Limits service.Limits
	Table  Table
	// HealthAddress is where balancers ask whether this node serves, as ":10256"; empty is nowhere.
	HealthAddress string
	// APIServers are known before there is a list.
	APIServers APIServers
	// Observe receives how long changes took from their arrival until they were in force; nil
	// drops it.
	Observe func(time.Duration)
	// CloseSockets closes this node's established TCP connections to a server that has gone, pods'
	// included; nil closes none.
	CloseSockets func(server netip.AddrPort) (closed int, err error)
	// AbortDatagrams disconnects this node's UDP sockets whose backend has gone, pods' included;
	// nil disconnects none. It is called, beside all else, soon after backends of UDP went.
	AbortDatagrams func() (aborted int, err error)
	// Log receives changes and problems; nil discards them.
	Log *slog.Logger
}

// Proxy is the table of one node. Make one with New, Begin, then Run it once; its other methods may
// be called at any time from any goroutine.
type Proxy struct {
	table   Table
	log     *slog.Logger
	observe func(time.Duration)
	planner *service.Planner  // Run's alone
	entry   service.APIServer // what the planner was told; Run's alone
	api     *apiServers
	health  *healthPorts
	closing func(netip.AddrPort) (int, error)
	abort   func() (int, error)
	stale   chan struct{} // backends of UDP went; capacity 1
	probe   prober
	settled time.Duration
	retry   time.Duration // the first pause after writes that could not be made
	listen  time.Duration // between two tries of a port
	// abortRetry is the pause after UDP sockets could not be disconnected, abortAgain that before
	// they are looked for once more.
	abortRetry, abortAgain time.Duration
	// the programs are to be attached once everything is listed; Run's alone
	late  bool
	taken bool // everything was, and the planner knows it; Run's alone
	// when the first change came that the planner knows and that is not in force; Run's alone
	pending time.Time
	// for stale datagrams, once everything was written; Run's alone
	looked bool

	attached chan struct{}
	wake     chan struct{}
	asked    chan func(*service.Planner)
	done     chan struct{}

	mu     sync.Mutex // guards the fields below
	queue  changes
	since  time.Time // when the first of queue came
	listed bool
	status Status
	// nodes are what SetNodeAddrs said last, if it did; nodesNew is that the planner does not know.
	nodes               []netip.Addr
	nodesSeen, nodesNew bool
	// tunnels are the endpoints that SetTunnels reserved last; tunnelsNew is that the planner does
	// not know.
	tunnels    []netip.AddrPort
	tunnelsNew bool
}

// New makes a Proxy. Errors are service.ErrLimits.
func New(o Options) (*Proxy, error) {
	planner, err := service.New(o.Node, o.Limits)
	if err != nil {
		return nil, err
	}

	p := &Proxy{
		table: o.Table, log: o.Log, observe: o.Observe, planner: planner, closing: o.CloseSockets,
		abort: o.AbortDatagrams, stale: make(chan struct{}, 1), probe: probeServer,
		settled: settled, retry: retryMin, listen: listenEvery, abortRetry: retryMax,
		abortAgain: abortAgain, attached: make(chan struct{}),
		wake: make(chan struct{}, 1), asked: make(chan func(*service.Planner)),
		done: make(chan struct{}),
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}

	if p.observe == nil {
		p.observe = func(time.Duration) {}
	}
	if p.closing == nil {
		p.closing = func(netip.AddrPort) (int, error) { return 0, nil }
	}

	p.api = newAPIServers(o.APIServers)
	p.health = newHealthPorts(o.Node, o.HealthAddress, p.log,
		func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) })
	p.status.Limits = o.Limits
	return p, nil
}

// Begin takes over what is in the maps, writes entry 0 and puts the programs in force, so that the
// API servers can be reached by their service's address. A Table that is Fresh waits: what is in
// force stays until Run has written everything. Call it once, before Run.
func (p *Proxy) Begin() error {
	state, err := p.table.State()
	if err != nil {
		return fmt.Errorf("read the table of services: %w", err)
	}
	p.planner.Adopt(state)
	p.planner.Hold(true)
	p.api.adopt(state)
	given, err := p.table.Given(p.api.frontends())
	if err != nil {
		p.log.Warn("connections to API servers that left the list before are left to "+
			"their programs", "error", err)
	}
	p.api.adoptLeft(given)
	p.setAPIServer()
	if err := p.write(); err != nil {
		return fmt.Errorf("write entry 0 of the table of services: %w", err)
	}
	if p.late = p.table.Fresh(); p.late {
		p.log.Warn("the table of services in force is of another version and stays until the " +
			"services are listed")
		return nil
	}
	return p.attach(len(state.Frontends))
}

// Attached is closed once the programs that read the table are in force.
func (p *Proxy) Attached() <-chan struct{} { return p.attached }

func (p *Proxy) attach(adopted int) error {
	if err := p.table.Attach(); err != nil {
		return fmt.Errorf("attach the programs of services: %w", err)
	}
	p.late = false
	close(p.attached)
	p.health.attached()
	p.log.Info("the table of services is in force", "adopted", adopted)
	return nil
}

// Run keeps the table until ctx ends; what is in force then stays.
func (p *Proxy) Run(ctx context.Context) {
	defer close(p.done)
	defer p.health.close()
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	p.api.start(ctx, &watching, p.probe, p.poke)
	watching.Go(func() { p.closeDead(ctx) })
	watching.Go(func() { p.abortStale(ctx) })
	p.poke()
	p.loop(ctx)
}

// loop makes a turn whenever something changed.
func (p *Proxy) loop(ctx context.Context) {
	var retry, look, listen <-chan time.Time
	pause, broken := p.retry, false
	for {
		if listen == nil && p.health.lacking() {
			listen = time.After(p.listen)
		}

		select {
		case <-ctx.Done():
			return
		case f := <-p.asked:
			f(p.planner)
			continue
		case <-look:
			look = nil
			if !broken { // the planner may know too little; a turn that is made looks again
				p.noteSizes()
				p.findProblems()
			}
			continue

		case <-listen:
			listen = nil
			p.health.update()
			continue
		case <-p.wake:
			if broken && reflect.DeepEqual(p.api.entry(), p.entry) {
				// what came waits in the queue until the maps were read again; entry 0 does not
				continue
			}
			if broken {
				pause = p.retry
			}

		case <-retry:
		}

		if err := p.turn(broken); err != nil {
			p.failed(err)
			broken, retry = true, time.After(pause)
			pause = min(2*pause, retryMax)
			continue
		}

		if broken {
			p.failed(nil)
			p.poke()
		}

		broken, retry, pause = false, nil, p.retry
		if look == nil {
			look = time.After(p.settled)
		}
	}
}

// turn takes what came and brings the table there. With broken, the maps are read first.
func (p *Proxy) turn(broken bool) error {
	if broken {
		state, err := p.table.State()
		if err != nil {
			return fmt.Errorf("read the table: %w", err)
		}
		p.planner.Adopt(state)
	}

	if p.setAPIServer() || broken {
		// By itself: whatever is wrong with the rest does not keep it from being written.
		if err := p.apply(p.planner.PlanAPIServer()); err != nil {
			return err
		}
	}

	if since := p.take(); p.pending.IsZero() {
		p.pending = since
	}

	p.setAPIServer()
	err := p.write()
	if err == nil && p.late && p.taken {
		err = p.attach(0)
	}

	p.health.update()
	if err == nil && p.taken && !p.looked {
		p.looked = true
		p.findStale() // the last process may have ended before it did, and had other tables
	}

	if err == nil && !p.pending.IsZero() {
		p.observe(time.Since(p.pending))
		p.pending = time.Time{}
	}

	return err
}

// setAPIServer tells the planner of entry 0 when it became another, and says whether it did.
func (p *Proxy) setAPIServer() bool {
	e := p.api.entry()
	if reflect.DeepEqual(e, p.entry) {
		return false
	}
	p.planner.SetAPIServer(e)
	p.entry = e
	p.log.Info("API servers of entry 0", "frontends", e.Frontends, "backends", e.Backends)
	return true
}

// take hands what came to the planner and says when the first of it came; until everything is
// listed and the node's addresses are known, it leaves it.
func (p *Proxy) take() (since time.Time) {
	p.mu.Lock()
	if !p.listed || !p.nodesSeen {
		p.mu.Unlock()
		return time.Time{}
	}
	queue, since := p.queue, p.since
	p.queue, p.since = changes{}, time.Time{}
	nodes, tell := p.nodes, p.nodesNew
	tunnels, reserve := p.tunnels, p.tunnelsNew
	p.nodesNew, p.tunnelsNew = false, false
	p.mu.Unlock()
	p.planner.Hold(false)
	p.taken = true
	if tell {
		p.planner.SetNodeAddrs(nodes)
	}
	if reserve {
		p.planner.SetTunnels(tunnels)
	}
	for _, f := range queue.all {
		f()
	}
	return since
}

// write plans and writes until there is nothing to write.
func (p *Proxy) write() error {
	for range rounds {
		changes := p.planner.Plan()
		if err := p.apply(changes); err != nil {
			return err
		}
		if !changes.Again {
			return nil
		}
	}
	p.poke()
	return nil
}

// apply makes changes, if there are any.
func (p *Proxy) apply(changes service.Changes) error {
	if changes.Empty() {
		return nil
	}
	err := p.table.Apply(changes)
	if tookDatagrams(changes) {
		p.findStale() // after an error too: what was written of it is not planned again
	}
	if err == nil {
		p.log.Debug("table of services changed", "writes", changes.Writes())
	}
	return err
}

// failed notes that the table could not be written, or with nil that it could again.
func (p *Proxy) failed(err error) {
	p.mu.Lock()
	was := p.status.Failed
	p.status.Failed = ""
	if err != nil {
		p.status.Failed = err.Error()
		p.status.Failures++
	}
	p.mu.Unlock()
	p.health.follows(err == nil)
	switch {
	case err != nil && was == "":
		p.log.Warn("the table of services cannot be written; it stays as it is and is tried again",
			"error", err)
	case err == nil:
		p.log.Info("the table of services could be written again")
	}
}

// errEnded is the answer of a Proxy whose Run has ended.
var errEnded = errors.New("the table of services is not kept any more")

// Ask lets f look at the planner between two turns, and waits for it.
func (p *Proxy) Ask(ctx context.Context, f func(*service.Planner)) error {
	answered := make(chan struct{})
	ask := func(planner *service.Planner) {
		defer close(answered)
		f(planner)
	}
	select {
	case p.asked <- ask:
		<-answered
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.done:
		return errEnded
	}
}
