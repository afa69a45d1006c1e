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

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Protocols of all traffic.
var Protocols = []string{"tcp", "udp"}

// Meeting bounds the wait until two that have just come can talk: proxies learn of services, peers
// of nodes.
const Meeting = time.Minute

// Talk sends messages from a pod to echo servers, in both protocols, until each has answered; the
// error names those that have not.
func Talk(ctx context.Context, from *remote.Pod, port int, to ...netip.Addr) error {
	return Meet(ctx, from, Echoes(port, to)...)
}

// Echoes returns targets of meet for a port at addresses, in both protocols.
func Echoes(port int, at []netip.Addr) []string {
	var targets []string
	for _, addr := range at {
		targets = append(targets, Both(netip.AddrPortFrom(addr, uint16(port)).String())...)
	}
	return targets
}

// Both returns targets of meet for a host:port.
func Both(to string) []string { return []string{"tcp/" + to, "udp/" + to} }

// Meet is talk to protocol/host:port, all at once; flags of veil-tools echo-meet may come first.
// One command does it all, because starting one takes an emulated node long.
func Meet(ctx context.Context, from *remote.Pod, targets ...string) error {
	if len(targets) == 0 {
		return fmt.Errorf("from %s: nothing to talk to", from.Name)
	}
	_, err := from.Exec(ctx, append([]string{"veil-tools", "echo-meet", "--timeout",
		remote.Patience(ctx, Meeting).String()}, targets...)...)
	return err
}

// TalkBoth is talk in both directions between two pods; flags are flags of veil-tools echo-meet.
func TalkBoth(ctx context.Context, a, b *remote.Pod, flags ...string) error {
	return AtOnce(
		func() error {
			return Meet(ctx, a, append(flags[:len(flags):len(flags)],
				Echoes(remote.EchoPort, b.Addrs)...)...)
		},
		func() error {
			return Meet(ctx, b, append(flags[:len(flags):len(flags)],
				Echoes(remote.EchoPort, a.Addrs)...)...)
		},
	)
}

// AtOnce runs all at once and joins their errors.
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
	Proto        string    `json:"proto"`
	To           string    `json:"to"`
	Sent         uint64    `json:"sent"`
	Answered     uint64    `json:"answered"`
	MaxGapMillis float64   `json:"maxGapMillis"`
	Lost         []lostRun `json:"lost"`
	Broken       string    `json:"broken"`

	interval time.Duration // between records
}

// lostRun is a run of UDP records of which none was answered.
type lostRun struct {
	At      float64 `json:"atMillis"`
	Records uint64  `json:"records"`
}

// lostAtOnce returns an error unless the records that a UDP flow lost were sent within limit, but
// for strayRuns: what is done to the data path once costs records once.
func (f Flow) lostAtOnce(limit time.Duration) error {
	if len(f.Lost) <= strayRuns {
		return nil
	}
	longest := slices.MaxFunc(f.Lost, func(a, b lostRun) int {
		return cmp.Compare(a.Records, b.Records)
	})
	stray := 0
	for _, r := range f.Lost {
		if math.Abs(r.At-longest.At) > millis(limit) {
			stray++
		}
	}
	if stray > strayRuns {
		return fmt.Errorf("%s to %s: lost records at %d times, more than %s before or after the "+
			"longest loss: %v", f.Proto, f.To, stray, limit, f.Lost)
	}
	return nil
}

// LostAtMost returns an error if a UDP flow lost more records than it sends in window, except for
// strayRuns. Late answers leave gaps too, so a gap is not a count of losses.
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

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (r lostRun) String() string { return fmt.Sprintf("%d from %.1f s on", r.Records, r.At/1e3) }

// Flows are connections and UDP flows that a pod keeps to echo servers, and how they were when last
// looked at.
type Flows struct {
	pod      *remote.Pod
	interval time.Duration
	last     []Flow
}

// FlowInterval is the pause between the records of a flow on usual machines: what it resolves, and
// what an emulated node can encrypt beside its work. A slower node gets fewer. Otherwise its echo
// server falls behind while containers start, and its socket drops what the network delivered.
const FlowInterval = 250 * time.Millisecond

// StartFlows runs a pod on a node that keeps flows to echo servers, and waits until every one is
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
		// One that ends must be seen to have ended.
		Change: func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }}}
	if err := n.Run(ctx, f.pod); err != nil {
		return nil, err
	}
	return f, f.live(ctx)
}

// Last returns the flows as they were when last looked at.
func (f *Flows) Last() []Flow { return f.last }

// read returns how the flows are now.
func (f *Flows) read(ctx context.Context) (now []Flow, err error) {
	err = LastLine(ctx, f.pod, &now)
	for i := range now {
		now[i].interval = f.interval
	}
	return now, err
}

// LastLine decodes the newest line that a pod wrote.
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

// live waits until each flow has been answered since it was last looked at; a TCP connection that
// has broken is an error.
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

// Held is live, and no flow was without an answer for longer than limit. It notes the longest gap
// and what UDP lost.
func (f *Flows) held(ctx context.Context, s *Session, limit time.Duration) error {
	if err := f.live(ctx); err != nil {
		return err
	}

	var errs []error
	var longest time.Duration
	var lost, sent uint64

	var whose []string
	for _, flow := range f.last {
		took := time.Duration(flow.MaxGapMillis * float64(time.Millisecond))
		longest = max(longest, took)
		if took > limit {
			errs = append(errs, fmt.Errorf("%s to %s: no answer for %s, at most %s allowed",
				flow.Proto, flow.To, took.Round(time.Millisecond), limit))
		}
		if flow.Proto == "udp" {
			lost += flow.Sent - flow.Answered
			sent += flow.Sent
			errs = append(errs, flow.lostAtOnce(limit))
		}
		if lost := flow.Sent - flow.Answered; flow.Proto == "udp" && lost > 1 {
			whose = append(whose, fmt.Sprintf("%s to %s: %d of %d not answered, of these %v",
				flow.Proto, flow.To, lost, flow.Sent, flow.Lost))
		}
	}

	s.Note("%d flows of %s live; longest gap %s; UDP %d of %d not answered", len(f.last),
		f.pod.Name, longest.Round(time.Millisecond), lost, sent)
	for _, w := range whose {
		s.Note("%s", w)
	}

	return errors.Join(errs...)
}

// HostEchoPort is where that one listens.
const HostEchoPort = 17001

func Seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
