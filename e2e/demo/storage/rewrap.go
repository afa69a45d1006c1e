package storage

import (
	"context"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/e2e/disk/answer"
	"github.com/kubeveil/kubeveil/e2e/disk/fio"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

const (
	caseRewrap = "rewrap_while_fio_runs"
	// rewraps is the number of rewraps, with a pause after each. fio runs for loadTime, which must
	// be longer than all rewraps and pauses together.
	rewraps  = 5
	pause    = time.Second
	loadTime = 20 * time.Second
)

// rewrap rewraps the first volume's key with new key-encryption keys while fio reads and writes the
// volume.
func (d *demo) rewrap(ctx context.Context) error {
	job := fio.Job{
		File: firstAt + "/load", Size: 32 << 20, Block: "4k", Depth: 8, ReadWrite: "randrw",
		Runtime: loadTime, Name: "load",
	}
	type load struct {
		jobs []fio.Measured
		err  error
	}
	done := make(chan load, 1)
	go func() {
		out, err := d.machine.Exec(ctx, fio.Command([]fio.Job{job}))
		if err != nil {
			done <- load{nil, err}
			return
		}
		jobs, err := fio.Parse(out)
		done <- load{jobs, err}
	}()

	wrapped, err := d.machine.Do(ctx, d.tool("rewrap", firstVolume, fmt.Sprint(rewraps),
		pause.String())...)
	var l load
	select {
	case l = <-done:
		return fmt.Errorf("fio ended before the key was rewrapped %d times: %w", rewraps, l.err)
	default:
	}

	l = <-done
	if err != nil {
		return err
	}
	if l.err != nil {
		return l.err
	}

	return d.judgeRewrap(wrapped, l.jobs[0])
}

func (d *demo) judgeRewrap(wrapped answer.Answer, load fio.Measured) error {
	var took []float64
	for _, t := range wrapped.Took {
		took = append(took, float64(t.Microseconds())/1000)
	}
	stat := bench.Summarize(took)
	d.result.Cases = append(d.result.Cases,
		bench.Case{Name: caseRewrap, Unit: bench.Millisecond, Ours: stat})
	d.say("the key was rewrapped %d times while fio wrote %d and read %d blocks: median %.1f "+
		"ms, no error", stat.N, load.Write.Ops, load.Read.Ops, stat.Median)
	d.result.Gates = append(d.result.Gates,
		bench.Exactly("key rewrapped while fio runs: errors of fio", load.Errors, 0, "errors"),
		bench.Gate{Name: "key rewrapped while fio runs: blocks that fio wrote",
			Want: "more than 0", Got: fmt.Sprint(load.Write.Ops), OK: load.Write.Ops > 0},
		bench.Exactly("key rewrapped", stat.N, rewraps, "times"))
	return nil
}
