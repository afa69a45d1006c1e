package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// paced is the rate of part between in Mbit/s, which all sides carry without a queue.
const paced = 40

// between compares datagrams between pods of two nodes: with programs of services at links, with the
// fast path of pods, and with neither. The last is measured twice, which shows the noise.
func (r *run) between(ctx context.Context) (err error) {
	const mtu = 1500
	sides := map[string]*pair{}
	for _, side := range []string{sideNoServices, sideKernel, sideFastPath} {
		l, err := lab.New(ctx, lab.Options{Family: lab.IPv4, UnderlayMTU: mtu, Offloads: true,
			VeildConfig: servicesOf(side)})
		if err != nil {
			return err
		}
		defer l.Close()
		p, err := r.newPair(ctx, l)
		defer p.close()
		if err != nil {
			return err
		}
		if err := r.endOracle(l, false); err != nil {
			return err
		}
		if err := p.waitPath(ctx, side == sideFastPath); err != nil {
			return fmt.Errorf("%s: %w", side, err)
		}
		sides[side] = p
	}

	var groups []bench.Group
	for _, size := range []struct {
		name    string
		payload int
	}{{caseBetweenLarge, 1300}, {caseBetweenSmall, 100}} {
		measure := func(side string) bench.Measure {
			return func(ctx context.Context) (bench.Sample, error) {
				p := sides[side]
				flow := p.flow(r.tcp)
				flow.Busy = p.spent
				d, err := flow.UDP(ctx, paced*float64(size.payload)/1300, size.payload)
				return bench.Sample{Value: d.CPU * float64(size.payload) / 1e3}, err
			}
		}
		groups = append(groups, bench.Group{Name: size.name, MTU: mtu, Unit: bench.Microsecond,
			Sides: []bench.Side{{Name: sideNoServices, Measure: measure(sideNoServices)},
				{Name: sideAgain, Measure: measure(sideNoServices)},
				{Name: sideKernel, Measure: measure(sideKernel)},
				{Name: sideFastPath, Measure: measure(sideFastPath)}},
			Pairs: []bench.Pair{
				{Name: size.name + "_control", Ours: sideAgain, Base: sideNoServices},
				{Name: size.name + "_kernel", Ours: sideKernel, Base: sideNoServices},
				{Name: size.name + "_fast", Ours: sideFastPath, Base: sideNoServices},
				{Name: size.name + "_fast_to_kernel", Ours: sideFastPath, Base: sideKernel}},
			Turns: 2})
	}
	return r.Interleave(ctx, groups)
}

// spent returns the CPU time of the engines on both nodes and of the clients of this process. Most
// of the kernel's work for a packet counts as work of the process that sends it, so other programs
// of the machine change the difference of two calls little.
func (p *pair) spent(context.Context) (time.Duration, error) {
	var clients unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_CHILDREN, &clients)
	sum := time.Duration(clients.Utime.Nano() + clients.Stime.Nano())
	for _, n := range p.lab.Nodes()[:2] {
		engines, e := n.Processes("veil-wg")
		err = errors.Join(err, e)
		for _, engine := range engines {
			spent, e := load.ProcessCPU(engine.Pid)
			sum, err = sum+spent, errors.Join(err, e)
		}
	}
	return sum, err
}

// servicesOf returns the configuration of a side of part between.
func servicesOf(side string) map[string]any {
	routing := config.HostRoutingKernel
	switch side {
	case sideNoServices:
		return nil
	case sideFastPath:
		routing = config.HostRoutingEBPF
	}
	return map[string]any{"serviceProxy": config.ServiceProxyEBPF, "services": map[string]any{
		"limits": map[string]any{"backendSlots": 1 << 18}, "hostRouting": routing}}
}

// waitPath waits until the pods' datagrams pass netfilter on both nodes, or bypass it if fast is
// set. Pods get the fast path some seconds after they exist.
func (p *pair) waitPath(ctx context.Context, fast bool) error {
	const rules = "table inet bench { chain f { type filter hook forward priority 0; " +
		"meta l4proto udp counter; }; }"
	return lab.Until(ctx, 30*time.Second, func() error {
		for _, n := range p.lab.Nodes()[:2] {
			if _, err := n.Exec(ctx, "nft", rules); err != nil {
				return err
			}
		}

		_, err := p.flow(time.Second).UDP(ctx, 1, 1000)
		for _, n := range p.lab.Nodes()[:2] {
			out, e := n.Exec(ctx, "nft", "list", "table", "inet", "bench")
			if met := !strings.Contains(string(out), "packets 0 "); e == nil && met == fast {
				e = fmt.Errorf("%s: netfilter met datagrams: %t", n.Name, met)
			}
			_, gone := n.Exec(ctx, "nft", "delete", "table", "inet", "bench")
			err = errors.Join(err, e, gone)
		}
		return err
	})
}
