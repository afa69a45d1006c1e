package engine

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/worker"
	"github.com/kubeveil/kubeveil/pkg/worker/supervisor"
)

// tookFD is the descriptor to which a child writes when it has taken over the device.
const tookFD = 3

// Child reports whether Run started this process as a device process. If so, it serves the device
// and returns the exit status. In other processes it does nothing. A program that calls Run must
// call Child first.
func Child() (status int, is bool) { return suite.Child(Suite, serve) }

// serve serves a device. Its arguments are the engine, the AEAD, the directory, the MTU, the number
// of shards, whether it takes the device over, and the step of a handover at which it is killed.
func serve(ctx context.Context, args []string, _ io.Writer) error {
	if len(args) != 7 {
		return fmt.Errorf("%q: want seven arguments", args)
	}
	mtu, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	shards, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	takeOver, err := strconv.ParseBool(args[5])
	if err != nil {
		return err
	}
	var took *os.File
	if takeOver {
		took = os.NewFile(tookFD, "pipe")
	}

	return worker.RunDevice(ctx, worker.DeviceOptions{
		Request: supervisor.Request{Device: "veil0", MTU: mtu}, Dir: args[2], SocketDir: args[2],
		Engine: args[0], AEAD: args[1], Shards: shards, TakeOver: takeOver, TookOver: took,
		Step: stepper(args[6]),
		Log:  slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

// stepper returns a function that the worker calls at each step of a handover. The function kills
// this process at the step killedAt. Otherwise it collects the times of the steps, and writes them
// to standard error at the end of the handover.
func stepper(killedAt string) func(string) {
	line := stepsLine
	return func(name string) {
		var ts unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
		if name == killedAt {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		line += fmt.Sprintf(" %s=%d", name, ts.Nano())
		if name == worker.StepGone || name == worker.StepStarted {
			fmt.Fprintln(os.Stderr, line)
			line = stepsLine
		}
	}
}
