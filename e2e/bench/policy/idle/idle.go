package idle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Measure returns the CPU time, in milliseconds per minute, that this process takes while nothing
// changes. Another process of the suite reads it: without a Keeper, the timers of a process that
// measures itself took 0.3 to 0.9 ms. Its command line calls Watch.
//
// Before that, Measure pauses and calls prepare. Then it collects garbage and returns its memory to
// the kernel; otherwise Go would do so during the measurement.
func Measure(ctx context.Context, suiteName string, long time.Duration,
	prepare func()) (perMinute float64, err error) {
	settle := long / 20
	if err := poll.Pause(ctx, settle); err != nil {
		return 0, err
	}
	prepare()
	debug.FreeOSMemory()

	self, err := suite.NewSelf(suiteName)
	if err != nil {
		return 0, err
	}
	argv := self.Argv(fmt.Sprint(os.Getpid()), settle.String(), long.String())
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return 0, errors.Join(err, context.Cause(ctx))
	}
	var spent int64
	if _, err := fmt.Sscan(string(out), &spent); err != nil {
		return 0, fmt.Errorf("CPU time %q: %w", out, err)
	}
	return bench.Millis(time.Duration(spent)) * float64(time.Minute) / float64(long), nil
}

// Watch prints the nanoseconds of CPU time that a process takes. Its arguments are the process's
// number, and the durations before and of the measurement.
func Watch(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 3 {
		return fmt.Errorf("%q: want a process and two durations", args)
	}
	pid, err := strconv.Atoi(args[0])
	settle, settleErr := time.ParseDuration(args[1])
	long, longErr := time.ParseDuration(args[2])
	if err := errors.Join(err, settleErr, longErr, poll.Pause(ctx, settle)); err != nil {
		return err
	}

	before, err := load.ProcessCPU(pid)
	if err := errors.Join(err, poll.Pause(ctx, long)); err != nil {
		return err
	}
	after, err := load.ProcessCPU(pid)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, int64(after-before))
	return err
}
