package connectivity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Defaults of WalkConfig.
const (
	// DefaultNamespace is the prefix of the name of the walk's namespace.
	DefaultNamespace = "veilctl-connectivity"
	// DefaultHostPort is opened on node B. The host-network pods on A and B use the port after it.
	DefaultHostPort = 40700
)

// Time limits. A flow is retried for flowPatience, because service proxies may not have the service
// yet and tunnels may have no session. A flow that must be refused gets one try of refusalTry.
const (
	flowPatience  = 20 * time.Second
	flowTry       = 5 * time.Second
	refusalTry    = 2 * time.Second
	clearPatience = 6 * time.Minute
)

// The number of messages of a flow, and the size of each in bytes, which is below every path MTU.
const (
	messages    = 3
	messageSize = 400
)

// WalkConfig configures a walk. The zero value walks between the first two workers and not to the
// outside.
type WalkConfig struct {
	// Namespace is the prefix of the name of the namespace. "" means DefaultNamespace.
	Namespace string
	// Nodes are the names of node A and node B. An empty list means the first two workers.
	Nodes []string
	// Outside are servers outside the cluster that answer over TCP, at most one of each family.
	Outside []netip.AddrPort
	// HostPort is a free port of the nodes. 0 means DefaultHostPort.
	HostPort int
	// TunnelPort is the UDP port of tunnels. 0 means the port in the VeilNode objects.
	TunnelPort int
	// Step is called with a description of each step. Walked is called with the flows of each kind
	// once they are judged. Either may be nil.
	Step   func(what string)
	Walked func(flows []Flow)
}

// Walk sends flows of all kinds and reports what was observed. An error means that the walk did not
// finish, or that it proves nothing; the report then holds the flows so far. Flows that were not as
// promised do not count as an error: see Report.OK.
func Walk(ctx context.Context, c *remote.Cluster, opts WalkConfig) (report Report, err error) {
	opts.fill()
	s := &stage{opts: opts, cluster: c}
	if s.all, err = c.Nodes(ctx); err != nil {
		return report, err
	}
	if s.nodes, err = chooseNodes(s.all, opts.Nodes); err != nil {
		return report, err
	}

	report.Nodes = []string{s.nodes[0].Name, s.nodes[1].Name}
	defer func() {
		if s.namespace != nil {
			opts.Step("removing namespace " + s.namespace.Name)
		}
		// The namespace is deleted also if ctx has ended, for example after Ctrl-C.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearPatience)
		defer cancel()
		err = errors.Join(err, s.clear(ctx))
	}()

	opts.Step(fmt.Sprintf("starting pods on %s (A) and %s (B)", s.nodes[0].Name, s.nodes[1].Name))
	if err := s.set(ctx); err != nil {
		return report, err
	}

	report.Skipped = s.skipped
	for _, w := range s.watchers {
		if _, err := w.part(ctx, remote.NewCanary()); err != nil {
			return report, err
		}
	}

	opts.Step("sending flows; the readers must see the first one in clear")
	flows, err := s.walk(ctx, control)
	report.add(flows)
	if err != nil {
		return report, err
	}
	if err := judgeControl(flows); err != nil {
		return report, err
	}

	for _, class := range s.classes {
		flows, err := s.walk(ctx, class)
		report.add(flows)
		if err != nil {
			return report, err
		}
	}

	return report, nil
}

func (o *WalkConfig) fill() {
	o.Namespace = cmp.Or(o.Namespace, DefaultNamespace)
	o.HostPort = cmp.Or(o.HostPort, DefaultHostPort)
	if o.Step == nil {
		o.Step = func(string) {}
	}
	if o.Walked == nil {
		o.Walked = func([]Flow) {}
	}
}

// ErrBlind matches the error of a walk whose watchers did not see the payload of the first flow,
// which crosses the uplinks in clear.
var ErrBlind = errors.New("the readers of the uplinks missed traffic in clear, so the test " +
	"proves nothing")

// judgeControl returns nil if the watchers of both nodes saw the payload of every flow.
func judgeControl(flows []Flow) error {
	if len(flows) == 0 {
		return fmt.Errorf("%w: the nodes have no address of the same family", ErrBlind)
	}
	for _, f := range flows {
		if f.Verdict != HostToHost {
			return fmt.Errorf("%w: the payload of %s from host to host was not seen in clear, "+
				"but %s %s", ErrBlind, f.Way, f.Verdict, f.Error)
		}
		for node, seen := range f.Seen {
			if seen.Clear == 0 || seen.Dropped > 0 {
				return fmt.Errorf("%w: node %s saw %d frames of %s in clear and lost %d", ErrBlind,
					node, seen.Clear, f.Way, seen.Dropped)
			}
		}
	}
	return nil
}

// walk sends and judges the flows of one kind, one for each family and protocol that it has.
func (s *stage) walk(ctx context.Context, c class) ([]Flow, error) {
	var flows []Flow
	for _, way := range ways {
		from := c.from(s)
		if _, ok := from.Addr(way.is4()); !ok && !from.HostNetwork {
			continue
		}
		to, ok := c.to(s, way)
		if !ok {
			continue
		}
		flow, err := s.flow(ctx, c, way, from, to)
		if err != nil {
			return flows, err
		}
		flows = append(flows, flow)
	}
	if len(flows) > 0 {
		s.opts.Walked(flows)
	}
	return flows, nil
}

// flow sends one flow and judges it.
func (s *stage) flow(ctx context.Context, c class, way Way, from *remote.Pod,
	to netip.AddrPort) (Flow, error) {
	canary := remote.NewCanary()
	for _, w := range s.watchers {
		if _, err := w.part(ctx, canary); err != nil {
			return Flow{}, err
		}
	}

	answered, sendErr := s.send(ctx, c, way, from, to, canary)
	f := Flow{Class: c.name, Way: way, From: from.Name + " on " + from.Node, To: to,
		Promised: c.promise, Delivered: sendErr == nil, Seen: map[string]Seen{}}
	if err := ctx.Err(); err != nil {
		return f, err
	}

	if sendErr != nil {
		if f.Error = sendErr.Error(); !errors.Is(sendErr, errUnanswered) {
			return f, sendErr
		}
	}

	o := observation{answered: answered, delivered: sendErr == nil}
	for i, w := range s.watchers {
		seen, err := w.part(ctx, remote.NewCanary())
		if err != nil {
			return f, err
		}
		f.Seen[w.node] = seen
		if i == 0 {
			o.near = seen
		} else if c.far || seen.Clear > 0 {
			o.far = &seen
		}
	}

	f.Verdict = judge(c.promise, o)
	f.OK = f.Verdict == f.Promised
	return f, nil
}

// send repeats a flow until its messages are answered or the time is over, and returns how many
// messages the last try got back. Failed tries carry the same canary, so the watchers see them too.
// An error that does not match errUnanswered means that the walk itself failed.
func (s *stage) send(ctx context.Context, c class, way Way, from *remote.Pod, to netip.AddrPort,
	canary string) (answered int, err error) {
	try, patience := flowTry, flowPatience
	if c.promise == Refused {
		// The command of the one try ends by itself.
		try, patience = refusalTry, 0
	}
	command := fmt.Sprintf("echo-send --proto %s --to %s --canary %s --timeout %s --count %d "+
		"--size %d",
		way.Proto, to, canary, try, messages, messageSize)
	if c.knock {
		command = fmt.Sprintf("tcp-knock --to %s --canary %s --timeout %s", to, canary, try)
	}
	began := time.Now()
	// The function ignores its context, because a cancelled request would end the session.
	err = remote.Until(ctx, way.String(), flowPatience+flowTry, func(context.Context) error {
		var err error
		answered, err = s.senders[from].send(ctx, command)
		if err != nil && (!errors.Is(err, errUnanswered) || time.Since(began) > patience) {
			return remote.Stop(err)
		}
		return err
	})
	return answered, err
}

func (r *Report) add(flows []Flow) {
	r.Flows = slices.Concat(r.Flows, flows)
}
