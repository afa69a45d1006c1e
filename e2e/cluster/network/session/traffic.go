package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/internal/toolresult"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Protocols are the protocols of all traffic.
var Protocols = []string{"tcp", "udp"}

// Meeting is the time limit until new pods, services and nodes can talk. Proxies and peers need
// time to configure them.
const Meeting = time.Minute

// Talk sends messages from a pod to echo servers, in both protocols, until each has answered. The
// error names the servers that have not.
func Talk(ctx context.Context, from *remote.Pod, port int, to ...netip.Addr) error {
	return Meet(ctx, from, Echoes(port, to)...)
}

// Echoes returns targets of Meet for a port at addresses, in both protocols.
func Echoes(port int, at []netip.Addr) []string {
	var targets []string
	for _, addr := range at {
		targets = append(targets, Both(netip.AddrPortFrom(addr, uint16(port)).String())...)
	}
	return targets
}

// Both returns targets of Meet for a host:port, in both protocols.
func Both(to string) []string { return []string{"tcp/" + to, "udp/" + to} }

// Meet sends messages from a pod to the echo servers targets, protocol/host:port, at the same time.
// Flags of veil-tools echo-meet may come first. It runs one command for all targets, because
// starting a command takes long on an emulated node.
func Meet(ctx context.Context, from *remote.Pod, targets ...string) error {
	if len(targets) == 0 {
		return fmt.Errorf("from %s: no targets", from.Name)
	}
	_, err := from.Exec(ctx, append([]string{"veil-tools", "echo-meet", "--timeout",
		remote.Patience(ctx, Meeting).String()}, targets...)...)
	return err
}

// TalkBoth makes two pods talk in both directions. flags are flags of veil-tools echo-meet.
func TalkBoth(ctx context.Context, a, b *remote.Pod, flags ...string) error {
	talk := func(from, to *remote.Pod) func() error {
		targets := slices.Concat(flags, Echoes(remote.EchoPort, to.Addrs))
		return func() error { return Meet(ctx, from, targets...) }
	}
	return AtOnce(talk(a, b), talk(b, a))
}

// AtOnce calls all functions concurrently and joins their errors.
func AtOnce(all ...func() error) error {
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i, fn := range all {
		running.Go(func() { errs[i] = fn() })
	}
	running.Wait()
	return errors.Join(errs...)
}

// Flow is the output of veil-tools echo-flow.
type Flow struct {
	toolresult.Flow
	interval time.Duration // between records
}

// lostAtOnce returns an error unless all lost runs of a UDP flow, except strayRuns, are within
// limit of the longest run. A single disturbance of the data path loses records only once.
func (f Flow) lostAtOnce(limit time.Duration) error {
	if len(f.Lost) <= strayRuns {
		return nil
	}
	longest := slices.MaxFunc(f.Lost, func(a, b toolresult.LostRun) int {
		return cmp.Compare(a.Records, b.Records)
	})
	stray := 0
	for _, r := range f.Lost {
		if math.Abs(r.At-longest.At) > 1e3*limit.Seconds() {
			stray++
		}
	}
	if stray > strayRuns {
		return fmt.Errorf("%s to %s: lost records at %d times, more than %s before or after the "+
			"longest loss: %v", f.Proto, f.To, stray, limit, f.Lost)
	}
	return nil
}

// LostAtMost returns an error if a UDP flow lost more records than it sends in window, plus
// strayRuns. It does not judge gaps, because late answers also cause gaps.
func (f Flow) LostAtMost(window time.Duration) error {
	most := uint64(window/f.interval) + strayRuns
	if lost := f.Sent - f.Answered; f.Proto == "udp" && lost > most {
		return fmt.Errorf("%s to %s: %d of %d records lost, at most %d allowed, which are those "+
			"of %s: %v", f.Proto, f.To, lost, f.Sent, most, window, f.Lost)
	}
	return nil
}

// strayRuns is the number of losses of a UDP flow that an emulated machine may cause itself.
const strayRuns = 2

// Flows are the TCP and UDP flows that a pod keeps to echo servers. last is their state at the last
// check.
type Flows struct {
	pod      *remote.Pod
	interval time.Duration
	last     []Flow
}

// FlowInterval is the interval of the records of a flow on usual machines. It is short enough to
// detect gaps, and long enough for emulated nodes. Slower machines get a longer interval. Otherwise
// the echo server would fall behind while containers start, and its socket would drop delivered
// records.
const FlowInterval = 250 * time.Millisecond

// StartFlows runs a pod on a node that keeps flows to echo servers, and waits until every flow is
// answered.
func (s *Session) StartFlows(ctx context.Context, name, node string,
	to ...netip.AddrPort) (*Flows, error) {
	n, err := s.OwnNamespace(ctx)
	if err != nil {
		return nil, err
	}
	var addrs []string
	for _, a := range to {
		addrs = append(addrs, a.String())
	}
	interval := remote.Patience(ctx, FlowInterval)
	f := &Flows{interval: interval, pod: &remote.Pod{Name: name, Node: node,
		Args: []string{"echo-flow", "--interval", interval.String(),
			"--to", strings.Join(addrs, ",")},
		// Do not restart the container, so that its end is noticed.
		Change: func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }}}
	if err := n.Run(ctx, f.pod); err != nil {
		return nil, err
	}
	return f, f.live(ctx)
}

// Last returns the flows at the last check.
func (f *Flows) Last() []Flow { return f.last }

// read returns the present state of the flows.
func (f *Flows) read(ctx context.Context) (now []Flow, err error) {
	err = LastLine(ctx, f.pod, &now)
	for i := range now {
		now[i].interval = f.interval
	}
	return now, err
}

// LastLine decodes the last line of a pod's log, JSON, to into.
func LastLine(ctx context.Context, pod *remote.Pod, into any) error {
	line, err := pod.Logs(ctx, 1)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(line), into); err != nil {
		return fmt.Errorf("pod %s prints %q: %w", pod.Name, line, err)
	}
	return nil
}

// live waits until each flow has an answer since the last check. It returns an error if a TCP
// connection has broken.
func (f *Flows) live(ctx context.Context) error {
	return remote.Until(ctx, "flows of "+f.pod.Name, Meeting, func(ctx context.Context) error {
		now, err := f.read(ctx)
		if err != nil {
			return err
		}
		for i, flow := range now {
			if flow.Broken != "" {
				return remote.Stop(fmt.Errorf("%s to %s broke after %d records: %s", flow.Proto,
					flow.To, flow.Answered, flow.Broken))
			}
			if flow.Answered == 0 || i < len(f.last) && flow.Answered == f.last[i].Answered {
				return fmt.Errorf("%s to %s: %d of %d records answered, none since", flow.Proto,
					flow.To, flow.Answered, flow.Sent)
			}
		}
		f.last = now
		return nil
	})
}

// held calls live, and returns an error if a flow was without an answer for longer than limit, or
// lost records at several times. It notes the longest gap and the lost UDP records.
func (f *Flows) held(ctx context.Context, s *Session, limit time.Duration) error {
	if err := f.live(ctx); err != nil {
		return err
	}

	var errs []error
	var longest time.Duration
	var lost, sent uint64
	for _, flow := range f.last {
		took := time.Duration(flow.MaxGapMillis * float64(time.Millisecond))
		longest = max(longest, took)
		if took > limit {
			errs = append(errs, fmt.Errorf("%s to %s: no answer for %s, at most %s allowed",
				flow.Proto, flow.To, took.Round(time.Millisecond), limit))
		}
		if flow.Proto != "udp" {
			continue
		}

		missing := flow.Sent - flow.Answered
		lost, sent = lost+missing, sent+flow.Sent
		errs = append(errs, flow.lostAtOnce(limit))
		if missing > 1 {
			s.Note("%s to %s: %d of %d not answered, of these %v", flow.Proto, flow.To, missing,
				flow.Sent, flow.Lost)
		}
	}

	s.Note("%d flows of %s live; longest gap %s; UDP %d of %d not answered", len(f.last),
		f.pod.Name, longest.Round(time.Millisecond), lost, sent)
	return errors.Join(errs...)
}

// Lossless returns an error unless each UDP record is answered, except for the newest. It waits for
// records that are under way.
func (f *Flows) Lossless(ctx context.Context) error {
	return remote.Until(ctx, "no record lost", underWay, func(ctx context.Context) error {
		now, err := f.read(ctx)
		if err != nil {
			return err
		}
		for _, flow := range now {
			if len(flow.Lost) > 0 {
				return fmt.Errorf("%s to %s: %d of %d records answered, lost: %v", flow.Proto,
					flow.To, flow.Answered, flow.Sent, flow.Lost)
			}
		}
		return nil
	})
}

// underWay bounds the time for which a record may be under way.
const underWay = 10 * time.Second

// HostEchoPort is the port of the echo server of OnNode.
const HostEchoPort = 17001

// Seconds returns a duration in seconds with one decimal, for notes and errors.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
