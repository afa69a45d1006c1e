package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/loop"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver"
	"github.com/kubeveil/kubeveil/pkg/service/healthcheck"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

const (
	// retryMin and retryMax bound the pause after a failed write.
	retryMin, retryMax = 100 * time.Millisecond, 10 * time.Second
	// abortPause is the least time between two searches for stale UDP sockets. A search walks all
	// sockets of every namespace. It takes at most a fifth of a processor: the pause is abortIdle
	// times as long as the search.
	abortPause, abortIdle = 200 * time.Millisecond, 4
	// abortAgain is the time until a second search, because a socket may have been connecting
	// during the first search.
	abortAgain = 2 * time.Second
	// settled is the time from a change to the next reading of problems and sizes. A reading walks
	// all services with problems.
	settled = 3 * time.Second
	// listenEvery is the pause between tries to listen on a health port that is in use.
	listenEvery = 2 * time.Second
)

// ServiceMaps is the table of services in BPF maps. pkg/service/bpfmaps implements it. Only one
// goroutine calls it.
type ServiceMaps interface {
	// State returns the content of the maps.
	State() (planner.MapContent, error)
	// Apply writes changes in their order. After an error, State returns the content that was
	// written.
	Apply(changes service.Changes) error
	// Attach attaches the programs that read the maps. It replaces programs of another version.
	Attach() error
	// Fresh reports whether the attached programs read an earlier table that could not be adopted.
	// This table then lacks the services that they serve.
	Fresh() bool
	// Given returns the backends that sockets got for these frontends, under earlier processes too.
	Given(frontends []netip.AddrPort) ([]netip.AddrPort, error)
}

// ServiceConfig holds the settings and dependencies of a Keeper.
type ServiceConfig struct {
	// Node is this node's name in Kubernetes.
	Node string
	// Limits are the sizes of the maps.
	Limits service.Limits
	Table  ServiceMaps
	// HealthAddress is the listen address of the node's health check, such as ":10256". An empty
	// address disables it.
	HealthAddress string
	// API are the settings for the API servers. New sets their Node and Log.
	API apiserver.ServersConfig
	// Observe receives the time from the arrival of a change until it is in force. It may be nil.
	Observe func(time.Duration)
	// AbortDatagrams disconnects the UDP sockets of this node and its pods whose backend is gone.
	// If it is nil, no socket is disconnected. A separate goroutine calls it soon after UDP
	// backends were removed.
	AbortDatagrams func() (aborted int, err error)
	// Log receives changes and problems. If it is nil, they are discarded.
	Log *slog.Logger
}

// Keeper is the service proxy of one node. Make it with New, then call Begin once and Run once. All
// other methods may be called at any time from any goroutine.
//
// Its state has three parts. A mutex guards the inbox. Only the loop uses owned, without a lock. A
// Status in shown never changes once it is published. The other fields do not change after Begin,
// or have their own locks.
type Keeper struct {
	table   ServiceMaps
	log     *slog.Logger
	observe func(time.Duration)
	api     *apiserver.Servers
	health  *healthcheck.Ports
	abort   func() (int, error)
	stale   chan struct{} // UDP backends were removed; capacity 1
	settled time.Duration
	listen  time.Duration // the pause between tries to listen on a port
	// abortRetry is the pause after a failed search for stale UDP sockets. abortAgain is the time
	// to the second search.
	abortRetry, abortAgain time.Duration
	attached               chan struct{}
	loop                   *loop.Loop

	inbox inbox
	own   owned
	// shown has the fields of Status that the loop knows. Only the loop replaces it.
	shown atomic.Pointer[Status]
}

// owned holds the state that only the goroutine of Begin, and then the loop of Run, may use.
type owned struct {
	planner *planner.Planner
	entry   service.APIServer // the entry 0 that the planner has
	// late reports whether the programs wait for the first full table.
	late  bool
	taken bool // the planner has all listed services
	// pending is the arrival of the oldest planned change that is not in force. The zero time means
	// that all changes are in force.
	pending time.Time
	// looked reports whether stale UDP sockets were searched for after the first full write.
	looked bool
	// broken reports whether the last turn failed. looking and listening report whether a call of
	// look and a new try to listen are scheduled.
	broken, looking, listening bool
}

// New returns a Keeper. It neither reads nor writes the table. The error is service.ErrLimits.
func New(o ServiceConfig) (*Keeper, error) {
	planner, err := planner.New(o.Node, o.Limits)
	if err != nil {
		return nil, err
	}

	k := &Keeper{
		table: o.Table, log: o.Log, observe: o.Observe,
		abort: o.AbortDatagrams, stale: make(chan struct{}, 1),
		settled: settled, listen: listenEvery, abortRetry: retryMax, abortAgain: abortAgain,
		attached: make(chan struct{}), own: owned{planner: planner},
	}
	k.shown.Store(&Status{Limits: o.Limits})
	// After a failed turn, changes wait in the queue until the maps are read again. A change of
	// entry 0 does not wait.
	k.loop = loop.New(loop.Schedule{RetryMin: retryMin, RetryMax: retryMax,
		Wait: func() bool { return reflect.DeepEqual(k.api.Entry(), k.own.entry) }})
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}

	if k.observe == nil {
		k.observe = func(time.Duration) {}
	}

	o.API.Node, o.API.Log = o.Node, k.log
	k.api = apiserver.New(o.API)
	k.health = healthcheck.New(o.Node, o.HealthAddress, k.log,
		func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) })
	return k, nil
}

// Begin adopts the content of the maps, writes entry 0 and attaches the programs. Then clients
// reach the API servers at the address of their service. If the maps are Fresh, Run attaches the
// programs after the first full write, and the programs of the last process serve until then. Call
// Begin once, before Run.
func (k *Keeper) Begin() error {
	state, err := k.table.State()
	if err != nil {
		return fmt.Errorf("read the table of services: %w", err)
	}
	k.own.planner.Adopt(state)
	k.own.planner.Hold(true)
	k.api.Adopt(state)
	given, err := k.table.Given(k.api.Frontends())
	if err != nil {
		k.log.Warn("veild cannot close connections to API servers that an earlier process removed "+
			"from the list", "error", err)
	}
	k.api.AdoptLeft(given)
	k.setAPIServer()
	if _, err := k.write(); err != nil {
		return fmt.Errorf("write entry 0 of the table of services: %w", err)
	}
	k.api.Written(k.own.entry)
	if k.own.late = k.table.Fresh(); k.own.late {
		k.log.Warn("the table of services in the kernel has another version and stays in force " +
			"until the services are listed")
		return nil
	}
	return k.attach(len(state.Frontends))
}

// Attached returns a channel that is closed once the programs are attached.
func (k *Keeper) Attached() <-chan struct{} { return k.attached }

func (k *Keeper) attach(adopted int) error {
	if err := k.table.Attach(); err != nil {
		return fmt.Errorf("attach the programs of services: %w", err)
	}
	k.own.late = false
	close(k.attached)
	k.health.Attached()
	k.log.Info("the table of services is in force", "adopted", adopted)
	return nil
}

// Run keeps the table up to date until ctx ends. The table then stays in force.
func (k *Keeper) Run(ctx context.Context) {
	defer k.health.Close()
	ctx, cancel := context.WithCancel(ctx)
	var aborting sync.WaitGroup
	wait := k.api.Start(ctx, k.loop.Poke)
	defer func() { cancel(); wait(); aborting.Wait() }()

	aborting.Go(func() { k.abortStale(ctx) })
	k.loop.Poke()
	k.loop.Run(ctx, k.step)
}

// step runs a turn, and records whether the table could be written.
func (k *Keeper) step(r loop.Reason) error {
	defer k.listenLater()
	k.own.broken = true
	if err := k.turn(r.Failed); err != nil {
		k.failed(err)
		return err
	}
	k.own.broken = false
	if r.Failed {
		k.failed(nil)
		k.loop.Poke()
	}
	if !k.own.looking {
		k.own.looking = true
		k.loop.After(k.settled, k.look)
	}
	return nil
}

// look updates the problems and sizes in shown. After a failed turn the planner may lack entries,
// so the next turn that succeeds looks again.
func (k *Keeper) look() {
	k.own.looking = false
	if k.own.broken {
		return
	}
	k.noteSizes()
	k.findProblems()
}

// listenLater schedules another try to listen on health ports that are in use.
func (k *Keeper) listenLater() {
	if k.own.listening || !k.health.Lacking() {
		return
	}
	k.own.listening = true
	k.loop.After(k.listen, func() {
		k.own.listening = false
		k.health.Update()
		k.listenLater()
	})
}

// SetNodes sets the number of nodes that probe the API servers, this one among them. More nodes
// probe less often.
func (k *Keeper) SetNodes(n int) { k.api.SetNodes(n) }

// errEnded is the error of Ask after Run has ended.
var errEnded = errors.New("veild ends and no longer maintains the table of services")

// Ask calls f with the planner between two turns and returns after f. An error means that f was not
// called: ctx is done, or Run has ended.
func (k *Keeper) Ask(ctx context.Context, f func(*planner.Planner)) error {
	err := k.loop.Do(ctx, func() { f(k.own.planner) })
	if errors.Is(err, loop.ErrEnded) {
		return errEnded
	}
	return err
}

// Status is the state of the table of services.
type Status struct {
	// Listed reports whether this process has listed the services. Until then, the table is as the
	// last process left it.
	Listed bool
	// Services is the number of known services.
	Services int
	// Used and Limits are the used and the available entries of the maps.
	Used, Limits service.Limits
	API          apiserver.Status
	// Failed is the error of the last write, "" if it succeeded. Failures counts failed writes.
	Failed   string
	Failures uint64
	// Problems has one sentence per service that is not served as its specification requires.
	Problems []string
}

// Status returns the current state. Numbers and problems may be some seconds old.
func (k *Keeper) Status() Status {
	s := *k.shown.Load()
	k.inbox.mu.Lock()
	s.Listed = k.inbox.listed
	k.inbox.mu.Unlock()
	s.API = k.api.Status()
	s.Problems = slices.Concat(s.Problems, k.health.Problems())
	return s
}

// show publishes a Status with the changes that f makes. Only the loop calls it. A published Status
// never changes.
func (k *Keeper) show(f func(*Status)) {
	next := *k.shown.Load()
	f(&next)
	k.shown.Store(&next)
}

func (k *Keeper) noteSizes() {
	used, services := k.own.planner.Sizes(), k.own.planner.Services()
	k.show(func(s *Status) { s.Used, s.Services = used, services })
}

// findProblems logs each new problem once, and the number of problems that ended.
func (k *Keeper) findProblems() {
	var now []string
	for _, err := range k.own.planner.Problems() {
		now = append(now, err.Error())
	}
	before := k.shown.Load().Problems
	k.show(func(s *Status) { s.Problems = now })
	const most = 20 // problems in the log at once; the status has all
	for i, text := range without(now, before, strings.Compare) {
		if i == most {
			k.log.Warn("more services have problems: see veilctl status")
			break
		}
		k.log.Warn("a service is not served as its object requests", "problem", text)
	}
	if n := len(without(before, now, strings.Compare)); n > 0 {
		k.log.Info("problems of services ended", "number", n)
	}
}
