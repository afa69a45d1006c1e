package network_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// settled waits until veild has an answer from its source and all its objects are in force.
func settled(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	nodetest.WaitStatus(ctx, t, n, 30*time.Second, func(s telemetry.Status) error {
		if !s.Ready || !s.Source.Synced || !s.Table.Waiting.IsZero() ||
			s.Table.Applied != s.Table.Revision || len(s.Problems) > 0 {
			return fmt.Errorf("not in force: source %+v, table %+v, not ready %q, problems %q",
				s.Source, s.Table, s.NotReady, s.Problems)
		}
		return nil
	})
}

// applied waits until the running veild has done its first apply.
func applied(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	nodetest.WaitStatus(ctx, t, n, 30*time.Second, func(s telemetry.Status) error {
		if !s.Ready {
			return fmt.Errorf("not ready: %q, problems %q", s.NotReady, s.Problems)
		}
		return nil
	})
}

// state is Kubeveil's state in a node's kernel, as text by kind.
type state map[string]string

// readState returns the state of a node, without secret keys and counters.
func readState(ctx context.Context, t *testing.T, n *lab.Node) state {
	t.Helper()
	s, err := tryState(ctx, n)
	errtest.Must(t, err)
	return s
}

func tryState(ctx context.Context, n *lab.Node) (state, error) {
	s := state{}
	for _, c := range []struct{ name, keep, command string }{
		{"rules", "", "ip rule"},
		{"rules, IPv6", "", "ip -6 rule"},
		{"routes", "proto 11", "ip -4 route show table all"},
		{"routes, IPv6", "proto 11", "ip -6 route show table all"},
		{"device", "", "ip -o link show dev veil0"},
		{"neighbours", "", "ip neigh show nud permanent"},
		{"nftables", "", "nft -s list ruleset"},
	} {
		words := strings.Fields(c.command)
		out, err := n.Exec(ctx, words[0], words[1:]...)
		if err != nil {
			return nil, err
		}
		// The operational state of a TUN device is UNKNOWN until the first change of its carrier.
		text := strings.ReplaceAll(string(out), " state UNKNOWN ", " state UP ")
		text = routeMTU.ReplaceAllString(text, "$1")
		text = sampledLinks.ReplaceAllString(text, "")
		s[c.name] = lines(text, func(line string) bool { return strings.Contains(line, c.keep) })
	}

	var err error
	if s["programs"], err = programs(n); err != nil {
		return nil, err
	}

	s["peers"], err = peers(n)
	return s, err
}

// routeMTU matches the part of a route that the probe may change at any time.
var routeMTU = regexp.MustCompile(`( metric \d+) mtu \d+`)

// sampledLinks matches set elements that dropped packets add, one per link.
var sampledLinks = regexp.MustCompile(
	`(?m)^\s*(elements = \{ )?("?[\w.-]+"? limit rate \S+ burst \d+ packets[ ,}]*)+$\n?`)

// lines returns the lines of text that keep selects, sorted.
func lines(text string, keep func(string) bool) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	all = slices.DeleteFunc(all, func(line string) bool { return !keep(line) })
	slices.Sort(all)
	return strings.Join(all, "\n")
}

var attachTypes = []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress}

// eachProgram calls visit for each BPF program that is attached to a link of a node.
func eachProgram(n *lab.Node, visit func(l net.Interface, at ebpf.AttachType,
	id ebpf.ProgramID) error) error {
	return n.Do(func() error {
		links, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, l := range links {
			for _, at := range attachTypes {
				res, err := link.QueryPrograms(link.QueryOptions{Target: l.Index, Attach: at})
				if err != nil {
					return fmt.Errorf("programs at %s: %w", l.Name, err)
				}
				for _, p := range res.Programs {
					if err := visit(l, at, p.ID); err != nil {
						return fmt.Errorf("program %d at %s: %w", p.ID, l.Name, err)
					}
				}
			}
		}
		return nil
	})
}

// programs returns the BPF programs of tc for each link, in their order.
func programs(n *lab.Node) (string, error) {
	var s strings.Builder
	err := eachProgram(n, func(l net.Interface, at ebpf.AttachType, id ebpf.ProgramID) error {
		_, err := fmt.Fprintf(&s, "%s(%d) %v %d\n", l.Name, l.Index, at, id)
		return err
	})
	return s.String(), err
}

// uapi sends a request to the configuration socket of the tunnel device and returns the lines of
// the answer, without secret keys, counters and ages.
func uapi(n *lab.Node, request string) (string, error) {
	c, err := net.DialTimeout("unix", n.Path("/run/wireguard/veil0.sock"), 2*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte(request)); err != nil {
		return "", err
	}
	var answer strings.Builder
	for r := bufio.NewScanner(c); r.Scan() && r.Text() != ""; {
		name, value, _ := strings.Cut(r.Text(), "=")
		switch name {
		case "private_key", "preshared_key", "rx_bytes", "tx_bytes", "last_handshake_time_sec",
			"last_handshake_time_nsec":
		case "errno":
			if value != "0" {
				return "", errors.New("errno " + value)
			}
		default:
			answer.WriteString(r.Text() + "\n")
		}
	}
	return answer.String(), nil
}

// peers returns the configuration of the tunnel device.
func peers(n *lab.Node) (string, error) { return uapi(n, "get=1\n\n") }

// diff returns an error that names the parts in which now differs from s.
func (s state) diff(now state) error {
	var errs []error
	for name, was := range s {
		if now[name] != was {
			errs = append(errs, fmt.Errorf("%s changed from\n%s\nto\n%s", name, was, now[name]))
		}
	}
	return errors.Join(errs...)
}

// same fails the test if now differs from s.
func (s state) same(t *testing.T, now state, when string) {
	t.Helper()
	if err := s.diff(now); err != nil {
		t.Errorf("%s: %v", when, err)
	}
}

// flush is a change that an administrator makes on a node by hand.
type flush struct {
	name string
	// commands are shell commands that make the change. If empty, do makes the change.
	commands string
	do       func(n *lab.Node) error
	// renews lists the parts of the state that veild makes again and that get other numbers.
	renews []string
}

func (f flush) run(ctx context.Context, n *lab.Node) error {
	if f.do != nil {
		return f.do(n)
	}
	_, err := n.Exec(ctx, "bash", "-c", "set -e; "+f.commands)
	return err
}

// detach removes the programs from links whose name matches.
func detach(pattern string) func(n *lab.Node) error {
	return func(n *lab.Node) error {
		taken := 0
		err := eachProgram(n, func(l net.Interface, at ebpf.AttachType, id ebpf.ProgramID) error {
			if ok, err := filepath.Match(pattern, l.Name); err != nil || !ok {
				return err
			}
			prog, err := ebpf.NewProgramFromID(id)
			if err != nil {
				return err
			}
			defer prog.Close()
			taken++
			return link.RawDetachProgram(link.RawDetachProgramOptions{Target: l.Index,
				Program: prog, Attach: at})
		})
		if err == nil && taken == 0 {
			err = errors.New("no program was attached to " + pattern)
		}
		return err
	}
}

// toldFlushes are repaired directly, because the kernel sends notifications of them.
var toldFlushes = []flush{
	{name: "device down", commands: "ip link set veil0 down"},
	{name: "device out of its group", commands: "ip link set veil0 group default"},
	{name: "device deleted", commands: "ip link del veil0", renews: []string{"device"}},
	{name: "our rules", commands: "for f in -4 -6; do for p in 90 91 100; do ip $f rule del pref " +
		"$p; done; done"},
	{name: "all rules",
		commands: "for f in -4 -6; do ip $f rule flush; ip $f rule add pref 32766 " +
			"lookup main; done; ip rule add pref 32767 lookup default"},
	{name: "our routes in main",
		commands: "ip -4 route flush table main proto 118; ip -6 route flush table main proto 118"},
	{name: "the table for pods",
		commands: "ip -4 route flush table 30309; ip -6 route flush table 30309"},
	{name: "routes of the device",
		commands: "ip -4 route flush table all dev veil0 proto 118; ip " +
			"-6 route flush table all dev veil0 proto 118"},
	{name: "pods' routes", commands: "for f in -4 -6; do for t in main 30309; do ip $f route " +
		"flush table $t proto 119; done; done"},
	{name: "guard table", commands: "nft delete table inet kubeveil_guard"},
	{name: "pods' table", commands: "nft delete table inet kubeveil_pods"},
	{name: "pods' addresses",
		commands: "for f in 4 6; do nft flush set inet kubeveil_pods pods$f; done"},
	{name: "pods' rules", commands: "nft flush chain inet kubeveil_pods prerouting"},
	{name: "masquerading table", commands: "nft delete table inet kubeveil_nat"},
	{name: "table of outer packets", commands: "nft delete table inet kubeveil_outer"},
	{name: "all of nftables", commands: "nft flush ruleset"},
}

// quietFlushes have no notification, so veild finds them at its next periodic check.
var quietFlushes = []flush{
	{name: "peers", do: func(n *lab.Node) error {
		_, err := uapi(n, "set=1\nreplace_peers=true\n\n")
		return err
	}},
	{name: "pods' neighbours",
		commands: "for l in /sys/class/net/vpod*; do ip neigh flush nud permanent dev " +
			"${l##*/}; done"},
	{name: "programs of the underlay link", do: detach("eth0")},
}

// After a flush by hand, nothing leaks, and veild repairs the state, so that traffic works again.
func TestFlushedByHand(t *testing.T) {
	flushed(t, flusher{within: 10 * time.Second}, toldFlushes, nil)
}

// As TestFlushedByHand, for changes without a notification of the kernel.
func TestFlushedQuietly(t *testing.T) {
	nettest.NeedLong(t, "veild looks each 30 s")
	flushed(t, flusher{within: 45 * time.Second, noTCP: true}, quietFlushes, nil)
}

// As TestFlushedByHand, but veild is killed before the flush and started after it.
func TestFlushedWithVeildDead(t *testing.T) {
	flushed(t, flusher{within: 15 * time.Second, dead: true},
		append(slices.Clone(toldFlushes), quietFlushes...),
		[]string{"device deleted", "all rules", "the table for pods", "all of nftables", "peers",
			"programs of the underlay link"})
}

// flushed makes a lab and does flushes there, one after the other. sample names the flushes that
// run if long tests are off; nil means all.
func flushed(t *testing.T, f flusher, flushes []flush, sample []string) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true})
	f.lab = l
	f.flows, f.node = allWays(ctx, t, l)
	all := slices.Clone(f.flows)
	f.flows = slices.DeleteFunc(f.flows, func(x flow) bool { return x.tcp && f.noTCP })
	settled(ctx, t, f.node)
	f.before = readState(ctx, t, f.node)
	for _, x := range flushes {
		t.Run(x.name, func(t *testing.T) {
			if sample != nil && !slices.Contains(sample, x.name) {
				nettest.NeedLong(t, "the others of this kind are a sample")
			}
			f.flush(ctx, t, x)
		})
	}
	for _, x := range all {
		if _, err := traffic.Send(ctx, x.from, traffic.Exchange{To: x.addr}); err != nil {
			t.Errorf("a new connection, %s: %v", x.name, err)
		}
	}
	nodetest.NoLeaks(t, l)
}

// flusher does flushes on a node while traffic runs.
type flusher struct {
	lab    *lab.Lab
	node   *lab.Node
	flows  []flow
	before state
	// within bounds the time until the repair, from the flush or the start of veild.
	within time.Duration
	// dead reports whether veild is killed before the flush and started after it.
	dead bool
	// noTCP leaves out TCP connections, because their retransmissions back off in a long break.
	noTCP bool
}

// flush does one flush and waits for the repair.
func (f *flusher) flush(ctx context.Context, t *testing.T, x flush) {
	running := startLoad(ctx, t, f.flows...)
	running.flowing(ctx, t, 10*time.Second)
	if f.dead {
		nodetest.KillProgram(ctx, t, f.node, "veild")
	}

	errtest.Must(t, x.run(ctx, f.node))

	if f.dead {
		f.strangers(ctx)
		startVeild(ctx, t, f.node, "")
	}

	began := time.Now()
	err := lab.Until(ctx, f.within, func() error {
		now, err := tryState(ctx, f.node)
		if err != nil {
			return err
		}
		for _, name := range x.renews {
			now[name] = f.before[name]
		}
		return f.before.diff(now)
	})
	if err != nil {
		t.Errorf("not repaired: %v", err)
	} else {
		t.Logf("repaired after %v", time.Since(began).Round(10*time.Millisecond))
	}

	for _, name := range x.renews {
		f.before[name] = readState(ctx, t, f.node)[name]
	}

	running.flowing(ctx, t, 20*time.Second)
	running.end(ctx, t, limits{gap: f.within, lossy: true})
	if seen := f.lab.Oracle.Seen(); seen.Findings() > 0 {
		t.Errorf("leak oracle: %d findings, %v", seen.Findings(), seen.Kinds)
	}
}

// strangers opens a new connection on every path, because rules treat a first packet differently
// from packets of a known connection. It ignores whether the packets arrive.
func (f *flusher) strangers(ctx context.Context) {
	var all sync.WaitGroup
	for _, x := range f.flows {
		all.Go(func() {
			tryAll(ctx, []traffic.Place{x.from}, []netip.Addr{x.addr}, 100*time.Millisecond, nil)
		})
	}
	all.Wait()
}

// allWays makes pods and returns flows from pod to pod, pod to node and node to pod. Each flow
// begins or ends at the first node, which it also returns.
func allWays(ctx context.Context, t *testing.T, l *lab.Lab) ([]flow, *lab.Node) {
	t.Helper()
	a, b := pair(ctx, t, l)
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	c := nodetest.AddPod(ctx, t, n1, "third")
	for _, at := range []traffic.Place{c, n1, n2} {
		nodetest.EchoAt(ctx, t, at)
	}
	v4, v6 := 0, 1
	return append(bothWays(a, b),
		flow{name: "UDP a to node, IPv4", from: a, to: n2, addr: n2.Addrs[v4]},
		flow{name: "UDP node to c, IPv6", from: n2, to: c, addr: c.Addr(true)},
		flow{name: "UDP b to node, IPv6", from: b, to: n1, addr: n1.Addrs[v6]},
		flow{name: "TCP a to node, IPv6", from: a, to: n2, addr: n2.Addrs[v6], tcp: true},
		flow{name: "TCP node to c, IPv4", from: n2, to: c, addr: c.Addr(false), tcp: true},
		flow{name: "TCP n1 to b, IPv4", from: n1, to: b, addr: b.Addr(false), tcp: true},
	), n1
}
