package connectivity

import (
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

// Patience of a flow: proxies may still learn of the service, tunnels may have to begin. A flow
// that must be refused gets one short try.
const (
	flowPatience  = 20 * time.Second
	flowTry       = 5 * time.Second
	refusalTry    = 2 * time.Second
	clearPatience = 6 * time.Minute
)

// What a flow sends: so many messages, each small enough for every path.
const (
	messages    = 3
	messageSize = 400
)

// WalkConfig configures a walk. The zero value walks between the first two workers and not to the
// outside.
type WalkConfig struct {
	// Namespace is the prefix of the name of the namespace. "" means DefaultNamespace.
	Namespace string
	// Nodes are two names. An empty list means the first two workers.
	Nodes []string
	// Outside are servers outside the cluster that answer something over TCP, one of each family at
	// the most.
	Outside []netip.AddrPort
	// HostPort is a free port of the nodes. 0 means DefaultHostPort.
	HostPort int
	// TunnelPort is the UDP port of tunnels. 0 means the port in the VeilNode objects.
	TunnelPort int
	// Step receives each step, and Walked the flows of each kind after their walk. Either may be
	// nil.
	Step   func(what string)
	Walked func(flows []Flow)
}

// Walk walks all kinds of flow and returns what was observed. An error means that the walk did not
// come to its end or proves nothing. The report then holds the flows until then. Flows that were
// not as promised do not count as an error: see Report.OK.
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
		// Also after Ctrl-C.
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

	opts.Step("walking; the first flow must be seen in clear, else nothing could be")
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
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.HostPort == 0 {
		o.HostPort = DefaultHostPort
	}
	if o.Step == nil {
		o.Step = func(string) {}
	}
	if o.Walked == nil {
		o.Walked = func([]Flow) {}
	}
}

// ErrBlind matches the error of a walk whose watchers did not see what they must see.
var ErrBlind = errors.New("the readers of the uplinks are blind: this walk proves nothing")

// judgeControl returns nil if both nodes' watchers saw every flow that must be seen.
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

// walk walks one kind of flow, in all its ways.
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

// send sends until it is answered or patience is over, and returns how many messages were answered
// in the end. Failed tries carry the canary too, and are watched. Errors other than errUnanswered
// come from the walk itself.
func (s *stage) send(ctx context.Context, c class, way Way, from *remote.Pod, to netip.AddrPort,
	canary string) (answered int, err error) {
	try, patience := flowTry, flowPatience
	if c.promise == Refused {
		// One try is enough, and it ends by itself.
		try, patience = refusalTry, 0
	}
	command := fmt.Sprintf("echo-send --proto %s --to %s --canary %s --timeout %s --count %d "+
		"--size %d",
		way.Proto, to, canary, try, messages, messageSize)
	if c.knock {
		command = fmt.Sprintf("tcp-knock --to %s --canary %s --timeout %s", to, canary, try)
	}
	began := time.Now()
	// A try that has begun is not cut short: that would end the session.
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

// add adds flows to the report.
func (r *Report) add(flows []Flow) {
	r.Flows = slices.Concat(r.Flows, flows)
}
