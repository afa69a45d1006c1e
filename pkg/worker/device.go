package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
)

// DeviceOptions say which device a process serves.
type DeviceOptions struct {
	// Request is the device.
	Request
	// Dir holds its state.
	Dir string
	// SocketDir holds its configuration socket; empty is SocketDir of this package.
	SocketDir string
	// Lock is the held lock of the device, into which the process writes its
	// number; RunDevice closes it. May be nil.
	Lock *os.File
	// Debug also logs what the library says when nothing is wrong.
	Debug bool
	Log   *slog.Logger
}

// Harden forbids core dumps and the reading of this process's memory by others
// of the same user (prctl(2), PR_SET_DUMPABLE).
func Harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid dumps of the process: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	return nil
}

// ErrDeviceGone is the error of RunDevice when the TUN was removed under it.
var ErrDeviceGone = errors.New("the TUN was removed")

// RunDevice serves a device until ctx ends, which is no error, or until it
// cannot. It never removes the TUN.
func RunDevice(ctx context.Context, o DeviceOptions) error {
	if err := checkName(o.Device); err != nil {
		return err
	}
	if o.SocketDir == "" {
		o.SocketDir = SocketDir
	}
	if o.Lock != nil {
		// Open, and so held, as long as the device is served.
		defer o.Lock.Close()
		if err := writePID(o.Lock); err != nil {
			return err
		}
	}
	tunDev, err := openTUN(o.Device, o.MTU)
	if err != nil {
		return err
	}
	dev := device.NewDevice(tunDev, conn.NewStdNetBind(), newLogger(o.Log.With("device", o.Device), o.Debug))
	defer dev.Close()
	s := &server{dev: dev, state: filepath.Join(o.Dir, o.Device+".state")}
	peers, err := s.restore(o.Log)
	if err != nil {
		return err
	}
	if up, err := linkIsUp(o.Device); err != nil {
		return err
	} else if up {
		if err := dev.Up(); err != nil {
			return fmt.Errorf("open the sockets of %s: %w", o.Device, err)
		}
	}
	shaken := make(chan struct{})
	go func() {
		defer close(shaken)
		shakeHands(ctx, dev, peers)
	}()
	err = s.run(ctx, filepath.Join(o.SocketDir, o.Device+".sock"), dev.Wait(), o.Log)
	dev.Close()
	<-shaken
	return err
}

// restore gives the device the state that was kept. One that it does not take is
// a warning: the device begins empty and waits to be configured.
func (s *server) restore(log *slog.Logger) (reachable []string, err error) {
	b, err := load(s.state)
	if err != nil {
		return nil, err
	}
	state, reachable := configuration(b)
	if err := s.dev.IpcSetOperation(bytes.NewReader(state)); err != nil {
		log.Warn("kept state is not usable, beginning empty", "file", s.state, "err", redact(err.Error()))
		empty := "private_key=0000000000000000000000000000000000000000000000000000000000000000\nreplace_peers=true\n"
		return nil, s.dev.IpcSetOperation(bytes.NewReader([]byte(empty)))
	}
	return reachable, nil
}

// run serves the configuration socket until ctx ends or the device does. A socket
// that somebody removed is made again.
func (s *server) run(ctx context.Context, path string, gone <-chan struct{}, log *slog.Logger) error {
	l, err := listen(path)
	if err != nil {
		return err
	}
	go s.serve(l)
	log.Info("device ready", "socket", path)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer func() {
		if l != nil {
			l.Close()
			os.Remove(path)
		}
	}()
	ours, err := os.Stat(path)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-gone:
			return ErrDeviceGone
		case <-tick.C:
		}
		var now os.FileInfo
		if now, err = os.Stat(path); err == nil && ours != nil && os.SameFile(now, ours) {
			continue
		}
		var again *net.UnixListener
		if again, err = listen(path); err != nil {
			log.Warn("configuration socket is gone and cannot be made again", "socket", path, "err", err)
			continue
		}
		l.Close()
		l = again
		ours, _ = os.Stat(path)
		go s.serve(l)
		log.Info("configuration socket made again", "socket", path)
	}
}

// Handshakes at start are spread, so that the answers of very many peers do not
// put this process under load: it would then ask them for cookies first.
const (
	handshakeBatch = 64
	handshakePause = 10 * time.Millisecond
)

// shakeHands begins a handshake with each of the peers. A peer that had a session
// with the process before this one cannot know that its keys are gone; when it only
// receives it would never find out.
func shakeHands(ctx context.Context, dev *device.Device, peers []string) {
	for i, text := range peers {
		if i > 0 && i%handshakeBatch == 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(handshakePause):
			}
		}
		var key device.NoisePublicKey
		if key.FromHex(text) != nil {
			continue
		}
		if p := dev.LookupPeer(key); p != nil {
			// Its error is a lost packet, which the library sends again.
			_ = p.SendHandshakeInitiation(false)
		}
	}
}
