package engine

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/internal/secret"
)

// Base is the state of a running device, for a process that will take the device over (the
// successor). With a base, only later changes have to be copied while the device is stopped. A base
// is valid for one Export, and only until the configuration changes.
type Base struct {
	// Image holds the state, in memory that is passed to the successor. Close, Resume and Commit
	// overwrite and close it.
	Image *secret.Sealed

	d          *Device
	configured uint64
	live       []span         // the output of visitLive per peer of order, in Image
	room       *secret.Sealed // memory for the rest; nil after Export
}

// span is a part of an image.
type span struct{ from, to int }

// has reports whether live is what the base holds for the peer at index i.
func (b *Base) has(i int, live []byte) bool {
	return bytes.Equal(b.Image.Bytes[b.live[i].from:b.live[i].to], live)
}

// Close overwrites and closes the memory. It is for a base without an Export.
func (b *Base) Close() {
	for _, s := range []*secret.Sealed{b.Image, b.room} {
		if s != nil {
			s.Close()
		}
	}
}

const (
	// baseSlack is memory for data that the threads may add to a base between counting and writing.
	baseSlack = 64 << 10
	// restSlack is memory for data that only a rest has, such as queued handshake messages.
	restSlack = 1 << 20
)

// Base returns the state of the device, which continues to run.
func (d *Device) Base() (_ *Base, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing.Load() {
		return nil, errClosed
	}
	b := &Base{d: d, configured: d.mu.configured, live: make([]span, 0, len(d.mu.order))}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()

	c := codec{way: counting, served: true}
	if err := d.visitBase(&c, b); err != nil {
		return nil, err
	}
	if b.Image, err = sealed(c.n + baseSlack); err != nil {
		return nil, err
	}
	c = codec{way: writing, b: b.Image.Bytes, served: true}
	if err := d.visitBase(&c, b); err != nil {
		return nil, fmt.Errorf("write the base: %w", err)
	}
	// Allocate and touch the memory for the rest now, while the device runs. That takes most of the
	// time of a rest.
	b.room, err = sealed(c.n + c.n/4 + restSlack)
	return b, err
}

// sealed returns memory of size bytes that only this process can write, already backed by pages.
func sealed(size int) (*secret.Sealed, error) {
	s, err := secret.NewSealed(size)
	if err != nil {
		return nil, err
	}
	if err := s.Seal(); err != nil {
		s.Close()
		return nil, err
	}
	if !s.Locked() {
		clear(s.Bytes)
	}
	return s, nil
}

// rest returns an image with the changes since the base.
func (b *Base) rest() (*secret.Sealed, error) {
	d := b.d
	c := codec{way: writing, b: b.room.Bytes}
	if d.visitRest(&c, nil, b) == nil {
		out := b.room
		b.room = nil
		return out, nil
	}

	// The changes do not fit into room.
	clear(b.room.Bytes)
	c = codec{way: counting}
	if err := d.visitRest(&c, nil, b); err != nil {
		return nil, err
	}
	out, err := sealed(c.n)
	if err != nil {
		return nil, err
	}
	c = codec{way: writing, b: out.Bytes}
	if err := d.visitRest(&c, nil, b); err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
}

// Handover is a stopped device that another process can take over. Exactly one of Resume and Commit
// ends it. Until then the device neither reads nor sends, and calls that configure it wait.
//
// Only one of the two processes may send afterwards. So the successor must not start its threads
// before this process has announced that it commits, and Commit erases the keys of this device.
type Handover struct {
	// Base is the argument of Export.
	Base *Base
	// Image holds the changes since the base, in memory that is passed to the successor. Resume and
	// Commit overwrite and close Image and Base.
	Image *secret.Sealed

	d *Device
}

// errConfigured is the error of Export for a base that is not valid any more.
var errConfigured = errors.New("the device was configured since its base was written")

// Export stops the device and returns the changes since the base. After an error the device
// continues to run, and the caller still owns the base.
func (d *Device) Export(b *Base) (*Handover, error) {
	d.mu.Lock()
	if d.closing.Load() {
		d.mu.Unlock()
		return nil, errClosed
	}
	if b.d != d || b.configured != d.mu.configured || b.room == nil {
		d.mu.Unlock()
		return nil, errConfigured
	}
	d.halt()
	image, err := b.rest()
	if err != nil {
		d.run()
		d.mu.Unlock()
		return nil, fmt.Errorf("export the device: %w", err)
	}
	return &Handover{Base: b, Image: image, d: d}, nil
}

// close overwrites and closes the images.
func (h *Handover) close() {
	h.Image.Close()
	h.Base.Close()
}

// Sockets returns the descriptors of the UDP sockets, in the order that Import needs. The device
// owns them and Commit closes them, so the successor needs duplicates.
func (h *Handover) Sockets() (fds []int) {
	if b := h.d.state.bound; b != nil {
		fds = append(fds, b.v4.FD)
		if b.v6 != nil {
			fds = append(fds, b.v6.FD)
		}
	}
	return fds
}

// Resume lets the device continue with the counters at which it stopped. cause is the reason why
// the successor did not take the device over; Drops counts it.
func (h *Handover) Resume(cause error) {
	h.close()
	r := handoverAbandoned
	if errors.Is(cause, ErrMalformed) {
		r = handoverMalformed
	}
	h.d.drops.add(r, 1)
	h.d.run()
	h.d.mu.Unlock()
	h.d.wakeControl()
}

// Commit closes the device and zeroes its keys. The device never sends again.
func (h *Handover) Commit() {
	h.close()
	first := !h.d.closing.Swap(true)
	h.d.mu.Unlock()
	if first {
		h.d.finish()
	}
}

// Prepare returns a device whose threads do not run, for a successor. It does all slow work that is
// possible while the other process still runs the device. Call ImportBase, Import and Start next,
// or Abandon.
func Prepare(o DeviceConfig) (*Device, error) { return build(o) }

// ImportBase reads a base into a device that Prepare returned. After an error, which is
// ErrMalformed for a bad image, call Abandon.
func (d *Device) ImportBase(image []byte) error {
	return d.visitBase(&codec{way: reading, b: image}, nil)
}

// Import reads the image of a Handover into a device, after ImportBase. The device uses the given
// sockets of the exported device. It reads and sends nothing before Start. If it may not start,
// call Abandon. Also call Abandon after an error, which is ErrMalformed for a bad image; the caller
// then still owns the sockets.
func (d *Device) Import(image []byte, sockets []int) error {
	return d.visitRest(&codec{way: reading, b: image}, sockets, nil)
}

// Abandon closes a device that was prepared and not started, and zeroes its keys. It does not close
// the sockets, because the exported device uses them.
func (d *Device) Abandon() {
	d.state.bound = nil
	d.Close()
}
