// Command veil-wg is userspace WireGuard for nodes whose kernel has no WireGuard. It is a
// supervisor that runs a process for each device that veild requests.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/version"
	"github.com/kubeveil/kubeveil/pkg/worker"
	"github.com/kubeveil/kubeveil/pkg/worker/logs"
	"github.com/kubeveil/kubeveil/pkg/worker/supervisor"
)

const usage = `Serve userspace WireGuard devices for veild, on a node whose kernel has no WireGuard.

Usage:
  veil-wg [flags]                       serve the requests in --dir (the supervisor)
  veil-wg device --mtu N [flags] NAME   serve one device (started by the supervisor)
  veil-wg ready                         report whether the veil-wg of --instance serves the devices
  veil-wg version

veild requests a device by writing <dir>/<device>.json. It configures the device through
/var/run/wireguard/<device>.sock, which wg(8) can use, too. Killed processes
are restarted; SIGTERM leaves the device and its routes.

Examples:
  veil-wg                               as a service, beside veild
  veil-wg --dir /run/other/wg           requests in another directory (veild needs the same)
  echo '{"device":"veil7","mtu":1420}' > ` + abi.WorkerDir + `/veil7.json
                                        request a device by hand
  rm ` + abi.WorkerDir + `/veil7.json         and remove it again

Flags:
`

// passedFD is the file descriptor that a device's process inherits. It is the device's lock, or the
// pipe on which the process reports that it took the device over.
const passedFD = 3

// instanceEnv is the environment variable with the default of --instance. Probes need it, because
// their command lines cannot contain variables.
const instanceEnv = "KUBEVEIL_INSTANCE"

type options struct {
	dir       string
	trustDisk bool
	level     slog.Level
	format    commandline.LogFormat
	mtu       int
	engine    string
	locked    bool
	takeOver  bool
	instance  string
}

func main() {
	// A device's process must not end when the reader of its log ends.
	signal.Ignore(syscall.SIGPIPE)
	commandline.MainArgs("veil-wg", run)
}

func run(ctx context.Context, args []string) error {
	if len(args) == 1 && args[0] == "version" {
		fmt.Println(version.String())
		return nil
	}

	verb := ""
	if len(args) > 0 && (args[0] == "device" || args[0] == "ready") {
		verb, args = args[0], args[1:]
	}

	var o options
	fs := commandline.New("veil-wg")
	fs.StringVar(&o.dir, "dir", abi.WorkerDir, "`directory` of requests, on tmpfs")
	fs.BoolVar(&o.trustDisk, "trust-disk", false,
		"allow --dir on a disk, where private keys would be written")
	fs.StringVar(&o.engine, "engine", worker.EngineKubeveil,
		"`engine` of the devices: "+strings.Join(worker.Engines, " or "))
	fs.TextVar(&o.level, "log-level", slog.LevelInfo, "`level` debug, info, warn or error")
	fs.TextVar(&o.format, "log-format", commandline.LogText, commandline.LogFormatUsage)
	fs.IntVar(&o.mtu, "mtu", 0, "device only: MTU in `bytes`, if the TUN does not exist yet")
	fs.BoolVar(&o.locked, "locked", false, "device only: file descriptor 3 is the device's lock")
	fs.BoolVar(&o.takeOver, "takeover", false,
		"device only: take the device over from the process that serves it, and report the "+
			"result to the pipe of file descriptor 3")
	fs.StringVar(&o.instance, "instance", os.Getenv(instanceEnv),
		"`name` of this veil-wg and its restarts, such as a pod's UID (default $"+instanceEnv+
			"); a newer instance takes over, an older one waits")
	if err := commandline.Parse(fs, usage, args, os.Stdout); err != nil {
		return err
	}

	if verb == "ready" {
		return supervisor.Ready(o.dir, o.instance)
	}
	if err := worker.CheckEngine(o.engine); err != nil {
		return err
	}
	if verb == "device" {
		// The supervisor starts this process with the needed environment, but another program may
		// not.
		if err := secret.KeepStacks(); err != nil {
			return err
		}
	}
	if err := worker.Harden(); err != nil {
		return err
	}

	lines := logs.NewWriter(os.Stderr, o.format.Handler(os.Stderr, slog.LevelWarn))
	defer lines.Close()
	log := slog.New(o.format.Handler(lines, o.level))
	if verb == "device" {
		return serveDevice(ctx, o, fs.Args(), log)
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unknown command %q; see veil-wg -h", fs.Arg(0))
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}

	s := &supervisor.Supervisor{Dir: o.dir, TrustDisk: o.trustDisk, Instance: o.instance, Log: log}
	command := func(r supervisor.Request, how string) []string {
		return []string{exe, "device", "--dir", o.dir, "--mtu", strconv.Itoa(r.MTU),
			"--engine", o.engine, "--log-level", o.level.String(), "--log-format", string(o.format),
			how, r.Device}
	}
	s.Command = func(r supervisor.Request) []string { return command(r, "--locked") }
	if worker.HandsOver(o.engine) {
		s.Takeover = func(r supervisor.Request) []string { return command(r, "--takeover") }
	}
	return s.Run(ctx)
}

func serveDevice(ctx context.Context, o options, args []string, log *slog.Logger) error {
	if len(args) != 1 {
		return fmt.Errorf("device: give the name of one device, not %q", args)
	}
	d := worker.DeviceOptions{Request: supervisor.Request{Device: args[0], MTU: o.mtu}, Dir: o.dir,
		Engine: o.engine,
		Debug:  o.level <= slog.LevelDebug, Log: log}
	switch {
	case o.locked:
		syscall.CloseOnExec(passedFD)
		d.Lock = os.NewFile(passedFD, "lock")
	case o.takeOver:
		syscall.CloseOnExec(passedFD)
		d.TakeOver, d.TookOver = true, os.NewFile(passedFD, "pipe")
	}
	return worker.RunDevice(ctx, d)
}
