package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/worker/confsocket"
	"github.com/kubeveil/kubeveil/pkg/worker/handover"
	"github.com/kubeveil/kubeveil/pkg/worker/supervisor"
)

// DeviceOptions configure a process that serves one device.
type DeviceOptions struct {
	// Request names the device and its MTU.
	supervisor.Request
	// Dir is the directory with the state of the device.
	Dir string
	// SocketDir is the directory of the configuration socket; empty means abi.WireGuardSocketDir.
	SocketDir string
	// Engine is EngineKubeveil or EngineWireGuardGo; empty means EngineKubeveil.
	Engine string
	// Shards is the number of TUN queues, each with a sending and a receiving thread, for
	// EngineKubeveil. 0 derives it from the number of CPUs.
	Shards int
	// AEAD is the name of the AEAD implementation for EngineKubeveil. Empty means the fastest that
	// the CPU supports. It is for benchmarks.
	AEAD string
	// Lock is the held lock of the device. The process writes its PID into it, and RunDevice closes
	// it. May be nil.
	Lock *os.File
	// TakeOver makes RunDevice take the device, with its sessions and its lock, over from the
	// process that serves it. RunDevice fails if there is no such process or if that process
	// refuses.
	TakeOver bool
	// TookOver is a pipe to which RunDevice writes a byte after the takeover, and which it then
	// closes. May be nil.
	TookOver *os.File
	// Step is called at each step of a handover. Tests use it to kill the process at a step.
	Step func(name string)
	// Debug also logs the library's messages about normal operation.
	Debug bool
	Log   *slog.Logger
}

// Harden forbids core dumps. It also forbids other processes of the same user to read the memory of
// this process (prctl(2), PR_SET_DUMPABLE).
func Harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid dumps of the process: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	return nil
}

// ErrDeviceGone is the error of RunDevice if the TUN was removed.
var ErrDeviceGone = errors.New("the TUN was removed")

// RunDevice serves a device until ctx ends or another process takes the device over, and then
// returns nil. It returns an error if the device fails. It never removes the TUN.
func RunDevice(ctx context.Context, o DeviceOptions) error {
	if err := supervisor.CheckName(o.Device); err != nil {
		return err
	}
	if o.SocketDir == "" {
		o.SocketDir = abi.WireGuardSocketDir
	}

	if o.TakeOver {
		return runSuccessor(ctx, o)
	}

	if o.Lock != nil {
		// The open file holds the lock while the device is served.
		defer o.Lock.Close()
		if err := supervisor.WritePID(o.Lock); err != nil {
			return err
		}
	}

	dev, err := openDevice(o)
	if err != nil {
		return err
	}
	defer dev.Close()
	s := &confsocket.Server{Device: dev, State: filepath.Join(o.Dir, o.Device+".state")}
	o.stamps().Restore(dev, o.Log) // before s.Restore, which makes the device greet its peers
	if err := s.Restore(o.Log); err != nil {
		return err
	}
	stop, err := dev.begin(ctx, s)
	if err != nil {
		return err
	}
	defer stop()
	l, err := confsocket.Listen(o.socket())
	if err != nil {
		return err
	}
	return run(ctx, s, o, dev, l)
}

// runSuccessor takes the device over from the process that serves it, and serves it.
func runSuccessor(ctx context.Context, o DeviceOptions) error {
	if !HandsOver(o.Engine) {
		return fmt.Errorf("take over %s: engine %s has no handover", o.Device, o.Engine)
	}
	t, err := takeOver(o)
	if err != nil {
		return err
	}
	defer t.dev.Close()
	if t.lock != nil {
		defer t.lock.Close()
		if err := supervisor.WritePID(t.lock); err != nil {
			o.Log.Warn("the lock names another process", "err", err)
		}
	}
	o.Lock = t.lock
	if o.TookOver != nil {
		_, err := o.TookOver.Write([]byte{1})
		if err = errors.Join(err, o.TookOver.Close()); err != nil {
			o.Log.Warn("the supervisor is gone", "err", err)
		}
	}
	s := &confsocket.Server{Device: t.dev, State: filepath.Join(o.Dir, o.Device+".state")}
	return run(ctx, s, o, t.dev, t.listener)
}

func (o *DeviceOptions) socket() string { return filepath.Join(o.SocketDir, o.Device+".sock") }

func (o *DeviceOptions) stamps() *confsocket.StampFile {
	return &confsocket.StampFile{Path: filepath.Join(o.Dir, o.Device+".stamp")}
}

func (o *DeviceOptions) step(name string) {
	if o.Step != nil {
		o.Step(name)
	}
}

// run serves the configuration socket until ctx ends, the device fails, or another process takes it
// over. It returns nil at the end of ctx and after a takeover. It recreates a socket that was
// removed.
func run(ctx context.Context, s *confsocket.Server, o DeviceOptions, dev served,
	l *net.UnixListener) error {
	path := o.socket()
	a := accept(l, s)
	handed := false
	defer func() {
		a.close()
		if !handed {
			os.Remove(path)
		}
	}()

	var asked chan *net.UnixConn
	giver, can := dev.(*own)
	if can {
		d, err := handover.OpenDesk(handover.Path(o.Dir, o.Device), giver.queues.FDs)
		if err != nil {
			return err
		}
		defer d.Close()
		asked = d.Asked
	}

	o.Log.Info("device ready", "socket", path)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	ours, _ := os.Stat(path) // if this fails, the loop recreates the socket
	stamps, stampsKept := o.stamps(), true
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-dev.gone():
			return ErrDeviceGone
		case c := <-asked:
			if err := giver.give(c, s, a, o.Lock, o.step); err != nil {
				o.Log.Warn("the device was not handed over; this process still serves it", "err",
					err)
				continue
			}
			handed = true
			o.Log.Info("another process serves the device now")
			return nil
		case <-tick.C:
		}

		err := stamps.Keep(dev)
		if err != nil && stampsKept {
			o.Log.Warn("the last timestamp cannot be kept", "err", err)
		}
		stampsKept = err == nil

		if now, err := os.Stat(path); err == nil && ours != nil && os.SameFile(now, ours) {
			continue
		}

		again, err := confsocket.Listen(path)
		if err != nil {
			o.Log.Warn("the configuration socket was removed and cannot be created again", "socket",
				path, "err", err)
			continue
		}

		a.close()
		a = accept(again, s)
		ours, _ = os.Stat(path)
		o.Log.Info("created the configuration socket again", "socket", path)
	}
}
