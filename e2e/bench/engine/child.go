package engine

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/worker"
)

// childEnv makes this program a device process: engine, AEAD, directory, MTU, shards, whether it
// takes the device over, and the step of a handover at which it is killed, by commas.
const childEnv = "KUBEVEIL_BENCH_ENGINE_DEVICE"

// tookFD is the descriptor on which a child reports that it took the device over.
const tookFD = 3

// Child serves a device if this process was started for that, and reports whether it was; status
// is then its exit status.
func Child() (status int, is bool) {
	text := os.Getenv(childEnv)
	if text == "" {
		return 0, false
	}
	if err := serve(strings.Split(text, ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

func serve(args []string) error {
	if len(args) != 7 {
		return fmt.Errorf("%s: want seven parts", childEnv)
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
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return worker.RunDevice(ctx, worker.DeviceOptions{
		Request: worker.Request{Device: "veil0", MTU: mtu}, Dir: args[2], SocketDir: args[2],
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
