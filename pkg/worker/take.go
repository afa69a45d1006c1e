package worker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
	"github.com/kubeveil/kubeveil/pkg/worker/handover"
)

// taken is a device that was taken over and started.
type taken struct {
	dev      *own
	lock     *os.File // nil if the former process had no lock
	listener *net.UnixListener
}

// takeOver takes the device over from the process that serves it. After an error that process
// continues to serve it, unless it died.
func takeOver(o DeviceOptions) (*taken, error) {
	// Do all slow work before the other process stops its device.
	options, link, err := engineOptions(o)
	if err != nil {
		return nil, err
	}
	if options.Tier == nil {
		if options.Tier, err = engine.ChooseTier(options.Log); err != nil {
			link.Close()
			return nil, err
		}
	}
	t := &taken{dev: &own{link: link}}
	if err := t.ask(o, options); err != nil {
		link.Close()
		return nil, fmt.Errorf("take over %s: %w", o.Device, err)
	}
	return t, nil
}

// ask runs the successor's side of the handover with the process that serves the device.
func (t *taken) ask(o DeviceOptions, options engine.DeviceConfig) error {
	raw, err := net.DialUnix("unixpacket", nil,
		&net.UnixAddr{Name: handover.Path(o.Dir, o.Device), Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("request it from the process that serves it: %w", err)
	}
	defer raw.Close()
	if err := handover.SameUser(raw); err != nil {
		return err
	}
	_ = raw.SetDeadline(time.Now().Add(handover.HelloPatience))
	if err := handover.Say(raw, handover.Hello); err != nil {
		return err
	}

	fds, err := handover.Receive(raw, handover.ParseQueues)
	if err != nil {
		return err
	}
	t.dev.queues.FDs = fds
	if err := t.prepare(o, options); err != nil {
		t.dev.queues.Close()
		return err
	}
	o.step(StepPrepared)
	if err := t.take(raw, o); err != nil {
		t.dev.Abandon()
		t.dev.queues.Close()
		return err
	}
	return nil
}

// prepare makes a device without state, with the queues that were received.
func (t *taken) prepare(o DeviceOptions, options engine.DeviceConfig) error {
	for _, fd := range t.dev.queues.FDs {
		if err := checkQueue(fd, o.Device); err != nil {
			return err
		}
		options.Queues = append(options.Queues, &sock.Queue{FD: fd})
	}
	runtime.GOMAXPROCS(2*len(options.Queues) + 2)
	var err error
	t.dev.Device, err = engine.Prepare(options)
	return err
}

// take receives the state into the device and starts it. After an error the device is not started.
func (t *taken) take(raw *net.UnixConn, o DeviceOptions) error {
	if err := handover.Say(raw, handover.Ready); err != nil {
		return err
	}
	_ = raw.SetDeadline(time.Now().Add(handover.BasePatience))
	if err := t.fill(raw, o); err != nil {
		return err
	}
	p, err := handover.Receive(raw, handover.ParseParcel)
	if err != nil {
		return err
	}
	o.step(StepReceived)
	if err := t.unpack(p); err != nil {
		handover.CloseFDs(p.FDs())
		refuse(raw, err)
		return err
	}
	o.step(StepImported)

	err = handover.Say(raw, handover.Taken)
	if err == nil {
		o.step(StepTold)
		// No deadline is needed: the other process sends "go" or a refusal, or closes the socket.
		_ = raw.SetDeadline(time.Time{})
		err = handover.Expect(raw, handover.Go)
	}
	if err != nil {
		handover.CloseFDs(p.Sockets)
		t.listener.Close()
		if t.lock != nil {
			t.lock.Close()
		}
		return fmt.Errorf("wait for the end of the process that serves it: %w", err)
	}

	o.step(StepGo)
	t.dev.Start()
	stood := handover.SinceBoot() - p.Since
	o.step(StepStarted)
	o.Log.Info("handover done", "stood_still", stood)
	return nil
}

// fill receives the base and imports it into the device.
func (t *taken) fill(raw *net.UnixConn, o DeviceOptions) error {
	fd, err := handover.Receive(raw, handover.ParseBase)
	if err != nil {
		return err
	}
	image, err := secret.OpenSealed(fd)
	if err != nil {
		unix.Close(fd)
		refuse(raw, err)
		return err
	}
	defer image.Close()
	if err := t.dev.ImportBase(image.Bytes); err != nil {
		refuse(raw, err)
		return err
	}
	o.step(StepFilled)
	return handover.Say(raw, handover.Filled)
}

// refuse sends a refusal of the state to the other process.
func refuse(raw *net.UnixConn, err error) {
	why := "failed"
	if errors.Is(err, engine.ErrMalformed) {
		why = handover.Malformed
	}
	_ = handover.Say(raw, handover.Refused+" "+why)
}

// unpack imports the state of the other process into the device, which does not run yet. After an
// error the caller still owns all descriptors of p.
func (t *taken) unpack(p *handover.Parcel) error {
	for _, fd := range p.Sockets {
		kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil {
			return fmt.Errorf("a descriptor is not a socket: %w", err)
		}
		if kind != unix.SOCK_DGRAM {
			return fmt.Errorf("a descriptor is a socket of type %d, want %d for datagrams", kind,
				unix.SOCK_DGRAM)
		}
	}

	file := os.NewFile(uintptr(duplicate(p.Listener)), "configuration")
	l, err := net.FileListener(file) // duplicates the descriptor again
	file.Close()
	if err != nil {
		return fmt.Errorf("configuration socket: %w", err)
	}
	listener, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return fmt.Errorf("configuration socket is of type %T", l)
	}

	if err := t.importImage(p); err != nil {
		listener.Close()
		return err
	}
	unix.Close(p.Listener)
	t.listener = listener
	if p.Lock >= 0 {
		t.lock = os.NewFile(uintptr(p.Lock), "lock")
	}
	return nil
}

func (t *taken) importImage(p *handover.Parcel) error {
	fd := duplicate(p.Image)
	image, err := secret.OpenSealed(fd)
	if err != nil {
		unix.Close(fd)
		return err
	}
	defer image.Close()
	if err := t.dev.Import(image.Bytes, p.Sockets); err != nil {
		return err
	}
	unix.Close(p.Image)
	return nil
}

// duplicate returns another descriptor for fd, or -1 on failure.
func duplicate(fd int) int {
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return other
}

// checkQueue refuses a descriptor that is not a queue of the TUN of that name.
func checkQueue(fd int, name string) error {
	ifr, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr)
	}
	if err != nil {
		return fmt.Errorf("a descriptor is not a queue of a TUN: %w", err)
	}
	const want = unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	if ifr.Name() != name || ifr.Uint16()&want != want {
		return fmt.Errorf("a descriptor is a queue of %s with flags %#x, want %s", ifr.Name(),
			ifr.Uint16(), name)
	}
	return nil
}
