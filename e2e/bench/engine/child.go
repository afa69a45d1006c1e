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

// tookFD is the descriptor on which a child reports that it took the device over.
const tookFD = 3

// Child serves a device if Run started this process for that, and returns its exit status. It
// returns false, and does nothing, in other processes. A program that calls Run must call it first.
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

// stepper returns a function that receives the steps of a handover. It kills this process at the
// step killedAt, and otherwise writes the times of the steps once the device runs again.
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
