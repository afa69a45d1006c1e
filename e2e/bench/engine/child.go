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

	"github.com/kubeveil/kubeveil/pkg/worker"
)

// childEnv makes this program a device process: engine, AEAD, directory, MTU and
// shards, by commas.
const childEnv = "KUBEVEIL_BENCH_ENGINE_DEVICE"

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
	if len(args) != 5 {
		return fmt.Errorf("%s: want five parts", childEnv)
	}
	mtu, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	shards, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return worker.RunDevice(ctx, worker.DeviceOptions{
		Request: worker.Request{Device: "veil0", MTU: mtu}, Dir: args[2], SocketDir: args[2],
		Engine: args[0], AEAD: args[1], Shards: shards,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}
