package network_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

const (
	// interval is the pause between datagrams of a flow.
	interval = 5 * time.Millisecond
	// workerBack is the time within which traffic flows again after the worker was killed. On an
	// idle machine one second is enough, but tests share the machine.
	workerBack = 3 * time.Second
	// said is the number of datagrams between two reports of a sink.
	said = 20
	// pause is the longest gap in an undisturbed flow on a loaded machine.
	pause = time.Second
)

// flow is traffic from one place to another.
type flow struct {
	name     string
	from, to traffic.Place
	addr     netip.Addr
	// tcp reports whether the flow is a TCP connection whose records are answered. Otherwise it is
	// one-way UDP. A place can receive only one UDP flow.
	tcp bool
}

// load is a set of running flows.
type load struct {
	flows []flow
	// near holds the process of each flow that sends. far holds the sink of each flow; nil for TCP.
	near, far []*lab.Process
}

// startLoad starts flows. The destination of a TCP flow needs an echo server.
func startLoad(ctx context.Context, t *testing.T, flows ...flow) *load {
	t.Helper()
	l := &load{flows: flows}
	t.Cleanup(func() {
		for _, p := range append(l.near, l.far...) {
			if p != nil {
				// a sink that still runs would occupy the port of the next sink
				_ = p.Kill(context.WithoutCancel(ctx))
			}
		}
	})
	for _, f := range flows {
		var near, far *lab.Process
		var err error
		if f.tcp {
			near, err = traffic.Hold(ctx, f.from, f.addr)
		} else if far, err = traffic.Sink(ctx, f.to); err == nil {
			near, err = traffic.Source(ctx, f.from, f.addr, interval)
		}
		if err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		l.near, l.far = append(l.near, near), append(l.far, far)
	}
	return l
}

// received returns the number of datagrams in the last report of a sink.
func received(sink *lab.Process) (int, error) {
	b, err := os.ReadFile(sink.Stdout)
	if err != nil {
		return 0, err
	}
	n := 0
	if i := bytes.LastIndex(b, []byte("received ")); i >= 0 {
		_, err = fmt.Sscanf(string(b[i:]), "received %d", &n)
	}
	return n, err
}

// flowing waits until datagrams of each UDP flow arrive that were sent after the call.
func (l *load) flowing(ctx context.Context, t *testing.T, timeout time.Duration) {
	t.Helper()
	before := make([]int, len(l.far))
	for i, far := range l.far {
		if far != nil {
			before[i], _ = received(far)
		}
	}
	for i, far := range l.far {
		if far == nil {
			continue
		}
		err := lab.Until(ctx, timeout, func() error {
			n, err := received(far)
			// The first new report may include datagrams that arrived before the call.
			if err == nil && n < before[i]+2*said {
				err = fmt.Errorf("%d datagrams arrived, %d before", n, before[i])
			}
			return err
		})
		if err != nil {
			t.Fatalf("%s does not flow: %v", l.flows[i].name, err)
		}
	}
}

// limits are the losses and gaps that end allows.
type limits struct {
	// gap is the longest time without a datagram, or without an answer on a TCP connection.
	gap time.Duration
	// lossy reports whether datagrams may be lost, but not for longer than gap.
	lossy bool
}

// end ends the flows, logs the measurements, and checks that no connection broke and no gap was too
// long.
func (l *load) end(ctx context.Context, t *testing.T, allowed limits) {
	t.Helper()
	for i, f := range l.flows {
		var gap float64
		if f.tcp {
			var h traffic.Held
			if err := l.near[i].Result(ctx, &h); err != nil {
				t.Errorf("%s: the connection was lost: %v", f.name, err)
			}
			gap = h.MaxGapMillis
			t.Logf("%-24s %5d records, longest gap %.0f ms", f.name, h.Records, gap)
		} else {
			var sent struct{ Sent, Failed uint64 }
			var d traffic.Drained
			if err := errors.Join(l.near[i].Result(ctx, &sent),
				l.far[i].Result(ctx, &d)); err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
			gap = d.MaxGapMillis
			t.Logf("%-24s %5d datagrams sent (%d refused), %d missing, longest gap %.0f ms", f.name,
				sent.Sent, sent.Failed, d.Missing, gap)
			// A loss of one in two hundred is noise on a loaded machine.
			if !allowed.lossy && d.Missing > 1+sent.Sent/200 {
				t.Errorf("%s: %d of %d datagrams were lost", f.name, d.Missing, sent.Sent)
			}
		}

		limit := float64(allowed.gap.Milliseconds())
		if f.tcp && allowed.lossy {
			limit *= 2 // the backoff of retransmissions can double the gap
		}
		if gap > limit {
			t.Errorf("%s stood still for %.0f ms, want at most %.0f", f.name, gap, limit)
		}
	}
}

// pair returns two pods on two nodes with a working tunnel.
func pair(ctx context.Context, t *testing.T, l *lab.Lab) (a, b *lab.Pod) {
	t.Helper()
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	return pods[0], pods[1]
}

// bothWays returns flows of one-way UDP and TCP between two pods, in both directions and with both
// families.
func bothWays(a, b *lab.Pod) []flow {
	return []flow{
		{name: "UDP a to b, IPv4", from: a, to: b, addr: b.Addr(false)},
		{name: "UDP b to a, IPv6", from: b, to: a, addr: a.Addr(true)},
		{name: "TCP a to b, IPv6", from: a, to: b, addr: b.Addr(true), tcp: true},
		{name: "TCP b to a, IPv4", from: b, to: a, addr: a.Addr(false), tcp: true},
	}
}

// startVeild starts veild and waits until its first apply. program is the program file; "" means
// the installed file.
func startVeild(ctx context.Context, t *testing.T, n *lab.Node, program string) *lab.Process {
	t.Helper()
	var p *lab.Process
	var err error
	if program == "" {
		p, err = n.StartProgram(ctx, "veild")
	} else {
		p, err = n.Start(ctx, program, "--config", "/etc/kubeveil/veild.yaml")
	}
	errtest.Must(t, err)
	applied(ctx, t, n)
	return p
}

// adopted fails the test if a veild that found a working data path changed it.
func adopted(t *testing.T, p *lab.Process) {
	t.Helper()
	b := filetest.Read(t, p.Stderr)
	for _, line := range strings.Split(string(b), "\n") {
		for _, change := range []string{"guard changed", "routing changed", "tunnels changed",
			"tunnel device made", "repaired", "wrote the CNI"} {
			if strings.Contains(line, change) {
				t.Errorf("the restart changed what was in force: %s", line)
			}
		}
	}
}

// While veild is dead, flows continue and pods can be added and removed. The next veild adopts the
// state.
func TestVeildKilledUnderLoad(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true})
	a, b := pair(ctx, t, l)
	n1 := l.Nodes()[0]
	settled(ctx, t, n1)
	before := readState(ctx, t, n1)

	flows := startLoad(ctx, t, bothWays(a, b)...)
	for range 3 {
		nodetest.KillProgram(ctx, t, n1, "veild")

		flows.flowing(ctx, t, 10*time.Second)
		c, err := n1.AddPod(ctx, "while-dead", lab.PodOptions{})
		if err != nil {
			t.Fatalf("ADD with veild dead: %v", err)
		}
		nodetest.EchoAt(ctx, t, c)

		talk(ctx, t, c, b)
		if err := errors.Join(c.Check(ctx), c.Del(ctx)); err != nil {
			t.Errorf("CHECK or DEL with veild dead: %v", err)
		}

		before.same(t, readState(ctx, t, n1), "while veild was dead")
		again := startVeild(ctx, t, n1, "")
		settled(ctx, t, n1)
		flows.flowing(ctx, t, 10*time.Second)
		before.same(t, readState(ctx, t, n1), "after the restart of veild")
		adopted(t, again)
	}

	flows.end(ctx, t, limits{gap: pause})
	nodetest.NoLeaks(t, l)
}

// An upgrade is SIGTERM and the start of another program. No flow breaks, and the state does not
// change.
func TestVeildUpgradedUnderLoad(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true})
	// It stays, and is linked again only after a change. Others measure meanwhile.
	other := filepath.Join(nodetest.Root(t), "out/next/veild")
	errtest.Must(t, os.MkdirAll(filepath.Dir(other), 0o755))
	build := exec.CommandContext(t.Context(), "nice", "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -X github.com/kubeveil/kubeveil/pkg/version.stamped=next", "-o", other,
		"./cmd/veild")
	build.Dir, build.Env = nodetest.Root(t), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build another veild: %v: %s", err, out)
	}

	a, b := pair(ctx, t, l)
	flows := startLoad(ctx, t, bothWays(a, b)...)
	for _, n := range l.Nodes() {
		settled(ctx, t, n)
		before := readState(ctx, t, n)
		if err := n.Program("veild").Term(ctx); err != nil {
			t.Errorf("%s: veild ended by SIGTERM: %v", n.Name, err)
		}
		if err := n.Status(ctx); err != nil {
			t.Errorf("%s takes no pods during the upgrade: %v", n.Name, err)
		}
		again := startVeild(ctx, t, n, other)
		settled(ctx, t, n)
		flows.flowing(ctx, t, 10*time.Second)
		before.same(t, readState(ctx, t, n), "after the upgrade")
		adopted(t, again)
	}

	flows.end(ctx, t, limits{gap: pause})
	talk(ctx, t, a, b)
	nodetest.NoLeaks(t, l)
}

// killDevice kills the process of a node's tunnel device with SIGKILL and waits until it has ended.
// Only the supervisor starts another process. The process may be a child of a dead supervisor.
func killDevice(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	supervisor := n.Program("veil-wg").PID()
	find := func() (*os.Process, error) {
		procs, err := n.Processes("veil-wg")
		i := slices.IndexFunc(procs, func(p *os.Process) bool { return p.Pid != supervisor })
		if i < 0 {
			return nil, errors.Join(err, fmt.Errorf("%s: no process of a device beside supervisor %d",
				n.Name, supervisor))
		}
		return procs[i], nil
	}

	var killed *os.Process
	err := lab.Until(ctx, 10*time.Second, func() (err error) {
		if killed, err = find(); err != nil {
			return err
		}
		return killed.Kill() // an error means that it has just ended: retry with its successor
	})
	errtest.Must(t, err)
	err = lab.Until(ctx, 10*time.Second, func() error {
		if p, err := find(); err == nil && p.Pid == killed.Pid {
			return fmt.Errorf("%s: process %d is there after SIGKILL", n.Name, p.Pid)
		}
		return nil
	})
	errtest.Must(t, err)
}

// After a worker was killed, its device, routes, keys and peers are restored directly, even if
// another process is dead.
func TestWorkerKilledUnderLoad(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true})
	a, b := pair(ctx, t, l)
	n2 := l.Nodes()[1]
	settled(ctx, t, n2)
	before := readState(ctx, t, n2)
	type strike = func(*testing.T)
	device := func(t *testing.T) { killDevice(ctx, t, n2) }
	program := func(name string) strike {
		return func(t *testing.T) {
			nodetest.KillProgram(ctx, t, n2, name)
		}
	}
	veild, supervisor := program("veild"), program("veil-wg")
	restart := func(t *testing.T) { // as init or the kubelet does
		nodetest.StartProgram(ctx, t, n2, "veil-wg")
	}

	both := bothWays(a, b)
	for _, c := range []struct {
		name  string
		flows []flow
		death []strike
		gap   time.Duration
		lossy bool
	}{
		{"device process", both, []strike{device}, workerBack, true},
		{"device process, it only receives", both[:1], []strike{device}, workerBack, true},
		{"device process, it only sends", both[1:2], []strike{device}, workerBack, true},
		{"device process again and again", both, []strike{device, device, device}, 2 * workerBack,
			true},
		{"supervisor", both, []strike{supervisor, restart}, pause, false},
		{"supervisor and device process", both, []strike{supervisor, device, restart}, workerBack,
			true},
		{"device process and veild", both, []strike{veild, device}, workerBack, true},
		{"supervisor, device process and veild", both, []strike{veild, supervisor, device, restart},
			workerBack, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			flows := startLoad(ctx, t, c.flows...)
			flows.flowing(ctx, t, 10*time.Second)
			for _, do := range c.death {
				do(t)
			}
			flows.flowing(ctx, t, 20*time.Second)
			flows.end(ctx, t, limits{gap: c.gap, lossy: c.lossy})
			if !n2.Program("veild").Running() {
				// Traffic is back without veild. Start veild, which must find nothing to do.
				adopted(t, startVeild(ctx, t, n2, ""))
			}
			settled(ctx, t, n2)
			before.same(t, readState(ctx, t, n2), "after it was killed")
		})
	}

	talk(ctx, t, a, b)
	nodetest.NoLeaks(t, l)
}
