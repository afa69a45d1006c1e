package policy

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

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// idle returns the CPU time, in milliseconds per minute, of this process while nothing changes. In
// a minute the Keeper asks twice whether the kernel's ruleset and two folders changed. Another
// process reads the CPU time: without the Keeper, the timers of a process that measures itself
// took 0.3 to 0.9 ms.
//
// Before that, idle makes the Keeper read the table, records and reservations: it reads again what
// changed within a second before. Then idle collects garbage and returns its memory to the kernel;
// otherwise Go would do so during the measurement.
func (n *node) idle(ctx context.Context, long time.Duration) (perMinute float64, err error) {
	settle := long / 20
	if err := sleep(ctx, settle); err != nil {
		return 0, err
	}
	n.TableChanged()
	debug.FreeOSMemory()

	self, err := suite.NewSelf(Suite)
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

// Child reports whether Run started this process as a child. If so, it runs the child and returns
// the exit status. In other processes it does nothing. A program that calls Run must call Child
// first.
func Child() (status int, is bool) { return suite.Child(Suite, watch) }

// watch prints the nanoseconds of CPU time that a process takes. Its arguments are the process's
// number, and the durations before and of the measurement.
func watch(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 3 {
		return fmt.Errorf("%q: want a process and two durations", args)
	}
	pid, err := strconv.ParseInt(args[0], 10, 32)
	settle, settleErr := time.ParseDuration(args[1])
	long, longErr := time.ParseDuration(args[2])
	if err := errors.Join(err, settleErr, longErr, sleep(ctx, settle)); err != nil {
		return err
	}

	before, err := cpuOf(int32(pid))
	if err := errors.Join(err, sleep(ctx, long)); err != nil {
		return err
	}
	after, err := cpuOf(int32(pid))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, int64(after-before))
	return err
}

// cpuOf returns the CPU time of a process and of all threads that it had, in user space and in the
// kernel.
func cpuOf(pid int32) (time.Duration, error) {
	const scheduler = 2 // CPUCLOCK_SCHED of the kernel: exact, not by ticks
	var t unix.Timespec
	if err := unix.ClockGettime(^pid<<3|scheduler, &t); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// sleep returns after d, or with an error once ctx has ended.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
