package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

// programs returns the runs and run time, during w.For, of the node's BPF programs whose names
// begin with w.Prefix. It uses the kernel's statistics (BPF_ENABLE_STATS, Linux 5.8).
func (n *node) programs(ctx context.Context, w session.Programs) (any, error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("statistics of BPF programs: %w", err)
	}
	defer stats.Close()
	before, err := ran(w.Prefix)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(w.For):
	}
	after, err := ran(w.Prefix)
	return session.Ran{Runs: after.Runs - before.Runs, Took: after.Took - before.Took}, err
}

// ran returns the sums of all loaded programs with the prefix. The counts of unloaded programs are
// lost.
func ran(prefix string) (all session.Ran, err error) {
	for id := ebpf.ProgramID(0); ; {
		if id, err = ebpf.ProgramGetNextID(id); errors.Is(err, os.ErrNotExist) {
			return all, nil
		} else if err != nil {
			return all, fmt.Errorf("list BPF programs: %w", err)
		}
		one, err := ranOne(id, prefix)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return all, fmt.Errorf("BPF program %d: %w", id, err)
		}
		all.Runs, all.Took = all.Runs+one.Runs, all.Took+one.Took
	}
}

func ranOne(id ebpf.ProgramID, prefix string) (session.Ran, error) {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return session.Ran{}, err
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil || !strings.HasPrefix(info.Name, prefix) {
		return session.Ran{}, err
	}
	stats, err := prog.Stats()
	if err != nil {
		return session.Ran{}, err
	}
	return session.Ran{Runs: stats.RunCount, Took: stats.Runtime}, nil
}
