package worker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// taken is a device that was taken over and started.
type taken struct {
	dev      *own
	lock     *os.File // nil: the former process had none
	listener *net.UnixListener
}

// takeOver goes on in place of the process that serves the device. With an error that process goes
// on, unless it died.
func takeOver(o DeviceOptions) (*taken, error) {
	// All that takes time comes before the device stands still.
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

// ask speaks to the process that serves the device.
func (t *taken) ask(o DeviceOptions, options engine.Options) error {
	raw, err := net.DialUnix("unixpacket", nil,
		&net.UnixAddr{Name: handPath(o.Dir, o.Device), Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("ask the process that serves it: %w", err)
	}
	defer raw.Close()
	if err := sameUser(raw); err != nil {
		return err
	}
	_ = raw.SetDeadline(time.Now().Add(helloPatience + handPatience))
	if err := say(raw, helloText); err != nil {
		return err
	}

	p, err := receive(raw)
	if err != nil {
		return err
	}
	o.step(StepReceived)
	if err := t.unpack(o, options, p); err != nil {
		closeFDs(p.fds())
		why := "failed"
		if errors.Is(err, engine.ErrMalformed) {
			why = malformed
		}
		_ = say(raw, refusedWord+" "+why)
		return err
	}
	o.step(StepImported)

	err = say(raw, takenText)
	if err == nil {
		o.step(StepTold)
		// The other side either says so or closes the socket; there is nothing else to wait for.
		_ = raw.SetDeadline(time.Time{})
		var text string
		if text, err = hear(raw); err == nil && text != goText {
			err = fmt.Errorf("it says %q, want %q", text, goText)
		}
	}
	if err != nil {
		t.dev.Abandon()
		closeFDs(p.sockets)
		t.dev.queues.close()
		t.listener.Close()
		if t.lock != nil {
			t.lock.Close()
		}
		return fmt.Errorf("wait for the end of the process that serves it: %w", err)
	}

	o.step(StepGo)
	t.dev.Start()
	return nil
}

// unpack makes a device of what came, which stands still. With an error all descriptors stay the
// caller's.
func (t *taken) unpack(o DeviceOptions, options engine.Options, p *parcel) error {
	for _, fd := range p.queues {
		if err := checkQueue(fd, o.Device); err != nil {
			return err
		}
		options.Queues = append(options.Queues, &sock.Queue{FD: fd})
	}
	for _, fd := range p.sockets {
		kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil {
			return fmt.Errorf("a descriptor is no socket: %w", err)
		}
		if kind != unix.SOCK_DGRAM {
			return fmt.Errorf("a descriptor is a socket of type %d, want %d for datagrams", kind,
				unix.SOCK_DGRAM)
		}
	}

	file := os.NewFile(uintptr(duplicate(p.listener)), "configuration")
	l, err := net.FileListener(file) // which duplicates it again
	file.Close()
	if err != nil {
		return fmt.Errorf("configuration socket: %w", err)
	}
	listener, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return fmt.Errorf("configuration socket is of type %T", l)
	}

	runtime.GOMAXPROCS(2*len(options.Queues) + 2)
	if t.dev.Device, err = importImage(options, p); err != nil {
		listener.Close()
		return err
	}
	unix.Close(p.listener)
	t.dev.queues.fds = p.queues
	t.listener = listener
	if p.lock >= 0 {
		t.lock = os.NewFile(uintptr(p.lock), "lock")
	}
	return nil
}

func importImage(options engine.Options, p *parcel) (*engine.Device, error) {
	image, err := secret.OpenSealed(duplicate(p.image))
	if err != nil {
		return nil, err
	}
	defer image.Close()
	d, err := engine.Import(options, image.Bytes, p.sockets)
	if err == nil {
		unix.Close(p.image)
	}
	return d, err
}

// duplicate returns another descriptor for fd, -1 when there is none.
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
		return fmt.Errorf("a descriptor is no queue of a TUN: %w", err)
	}
	const want = unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	if ifr.Name() != name || ifr.Uint16()&want != want {
		return fmt.Errorf("a descriptor is a queue of %s with flags %#x, want %s", ifr.Name(),
			ifr.Uint16(), name)
	}
	return nil
}
