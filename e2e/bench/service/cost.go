package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

const prefixCost = "cost_"

// cost measures the nanoseconds per run of Kubeveil's BPF programs, with tables of the first and
// the last size. It enables the kernel's statistics of BPF programs for that time; they add a
// little cost themselves. The load is new connections with a byte each way, so a large share of the
// packets are first packets of a connection.
func (s *run) cost(ctx context.Context) error {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("statistics of programs: %w", err)
	}
	defer stats.Close()

	for _, r := range reaches() {
		for _, n := range slices.Compact([]int{s.Sizes[0], s.Sizes[len(s.Sizes)-1]}) {
			l, err := s.lane(ctx, sideOurs, size{n, endpoints}, 0, r)
			if err != nil {
				return err
			}
			nanos := map[string][]float64{}
			for range s.Rounds {
				if err := s.costRound(ctx, l, r, nanos); err != nil {
					return err
				}
			}
			for _, name := range slices.Sorted(maps.Keys(nanos)) {
				text := fmt.Sprintf("%s%s_%s_%d_services", prefixCost, r, name, n)
				s.Add(text, fmt.Sprintf("A run of %s with %d services (%s)", name, n,
					where(r.String())), bench.Nanosecond, nanos[name]...)
			}
		}
	}

	return nil
}

// hostsEnd is the program for packets to a pod at the host's end of its link. Packets that eBPF
// host routing sends do not pass it.
const hostsEnd = "service_pod_out"

// costRound makes connections and adds the mean nanoseconds per run of each program to nanos, keyed
// by the name of the program.
func (s *run) costRound(ctx context.Context, l *lane, r reach, nanos map[string][]float64) error {
	before, err := s.stats(l, r)
	if err != nil {
		return err
	}
	load := openloop.Load{Kind: openloop.Connect, To: []netip.AddrPort{l.target(r, 1)},
		Slots: crrSlots, Duration: s.Sample}
	if _, err := s.ground.openLoop(ctx, l, r, load); err != nil {
		return err
	}
	after, err := s.stats(l, r)
	if err != nil {
		return err
	}
	for name := range after {
		n := after[name].runs - before[name].runs
		if n == 0 && name == hostsEnd {
			continue
		}
		if n == 0 {
			return fmt.Errorf("program %s did not run: no packet of lane %s passed it", name, l)
		}
		nanos[name] = append(nanos[name], float64(after[name].nanos-before[name].nanos)/float64(n))
	}
	return nil
}

// runs holds the number of runs of a program, and the nanoseconds that they took.
type runs struct{ runs, nanos uint64 }

// stats returns the statistics of the programs that process a client's TCP connections over IPv4,
// keyed by the name of the program.
func (s *run) stats(l *lane, r reach) (map[string]runs, error) {
	out := map[string]runs{}
	if r == pod {
		const name = "service_connect4"
		stat, err := pinnedStats(filepath.Join(s.ground.tableDir(l), name))
		if err != nil {
			return nil, fmt.Errorf("statistics of %s: %w", name, err)
		}
		out[name] = stat
	}
	err := l.node.Do(func() error {
		for _, at := range []struct {
			device string
			attach ebpf.AttachType
		}{
			{"client", ebpf.AttachTCXIngress}, {"client", ebpf.AttachTCXEgress},
			{"end0", ebpf.AttachTCXIngress}, {"end0", ebpf.AttachTCXEgress},
		} {
			if err := linkStats(at.device, at.attach, out); err != nil {
				return fmt.Errorf("statistics of programs at %s, %v: %w", at.device, at.attach, err)
			}
		}
		return nil
	})
	return out, err
}

// linkStats adds the statistics of the programs at a link of the calling thread's namespace to out.
// The statistics of the guard at egress include the programs to which it passes packets.
func linkStats(device string, attach ebpf.AttachType, out map[string]runs) error {
	ifi, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	at, err := link.QueryPrograms(link.QueryOptions{Target: ifi.Index, Attach: attach})
	if err != nil {
		return err
	}
	for _, p := range at.Programs {
		name, stat, err := programStats(p.ID)
		if err != nil {
			return err
		}
		out[name] = runs{out[name].runs + stat.runs, out[name].nanos + stat.nanos}
	}
	return nil
}

// pinnedStats returns the statistics of the program of a pinned BPF link.
func pinnedStats(pin string) (stat runs, err error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return stat, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	info, err := l.Info()
	if err != nil {
		return stat, err
	}
	_, stat, err = programStats(info.Program)
	return stat, err
}

func programStats(id ebpf.ProgramID) (name string, stat runs, err error) {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", stat, err
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return "", stat, err
	}
	stats, err := prog.Stats()
	if err != nil {
		return "", stat, err
	}
	return info.Name, runs{stats.RunCount, uint64(stats.Runtime)}, nil
}
