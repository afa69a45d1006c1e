package engine

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/internal/secret"
)

// Base is the state of a device while it was served, for a successor that will take its place. Only
// later changes then have to be copied while the device stands still. A base is good for one
// Export, until the device is configured.
type Base struct {
	// Image is the state, in memory for the successor. Close, Resume and Commit overwrite and close
	// it.
	Image *secret.Sealed

	d          *Device
	configured uint64
	live       []span         // of each peer of order, in Image
	room       *secret.Sealed // for the rest
}

// span is a part of an image.
type span struct{ from, to int }

// has reports whether the base has these bytes of a peer.
func (b *Base) has(i int, live []byte) bool {
	return bytes.Equal(b.Image.Bytes[b.live[i].from:b.live[i].to], live)
}

// Close overwrites and closes the memory of a base that was not exported.
func (b *Base) Close() {
	for _, s := range []*secret.Sealed{b.Image, b.room} {
		if s != nil {
			s.Close()
		}
	}
}

const (
	// baseSlack is room for data that the threads may add to a base between counting and writing.
	baseSlack = 64 << 10
	// restSlack is room for data that may make a rest larger than the base: sockets, and handshake
	// messages that wait.
	restSlack = 1 << 20
)

// Base returns the state of a device that continues to serve.
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
	// Made, and touched, while the device is served: a rest spends most of its time on that.
	b.room, err = sealed(c.n + c.n/4 + restSlack)
	return b, err
}

// sealed returns memory of that size which only this process can write.
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

// rest writes the changes since the base.
func (b *Base) rest() (*secret.Sealed, error) {
	d := b.d
	c := codec{way: writing, b: b.room.Bytes}
	if d.visitRest(&c, nil, b) == nil {
		out := b.room
		b.room = nil
		return out, nil
	}

	// The changes do not fit.
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

// Handover is a device that stands still so that another process can go on in its place. Exactly
// one of Resume and Commit ends it. Until then the device neither reads nor sends, and
// configuration waits.
//
// Only one of the two processes may send afterwards. So the successor starts no thread before it
// learns of Commit, and the device that has committed has erased its keys.
type Handover struct {
	// Base is the argument of Export.
	Base *Base
	// Image holds the changes since, in memory for the successor. Resume and Commit overwrite and
	// close both.
	Image *secret.Sealed

	d *Device
}

// errConfigured is the error of a base that the device no longer matches.
var errConfigured = errors.New("the device was configured since its base was written")

// Export stops the device and returns the changes since the base. After an error the device goes
// on, and the base still belongs to the caller.
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
// closes its own when it commits.
func (h *Handover) Sockets() (fds []int) {
	if b := h.d.state.bound; b != nil {
		fds = append(fds, b.v4.FD)
		if b.v6 != nil {
			fds = append(fds, b.v6.FD)
		}
	}
	return fds
}

// Resume lets the device go on at the counters where it stopped. The cause, why the successor did
// not take it, is counted.
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

// Commit closes the device: it has sent for the last time, and its keys are zeroed.
func (h *Handover) Commit() {
	h.close()
	first := !h.d.closing.Swap(true)
	h.d.mu.Unlock()
	if first {
		h.d.finish()
	}
}

// Prepare makes a device that stands still and has no state yet. It does everything that takes time
// and is possible while the device is still served. ImportBase and Import follow, or Abandon.
func Prepare(o DeviceConfig) (*Device, error) { return build(o) }

// ImportBase brings a device that Prepare returned to the state of a base. After an error, which is
// ErrMalformed for a bad image, call Abandon.
func (d *Device) ImportBase(image []byte) error {
	return d.visitBase(&codec{way: reading, b: image}, nil)
}

// Import brings a device with a base to the state in the image of the Handover, with the queues and
// sockets of the exported device. The device sends nothing and reads no packet before Start.
// Abandon is for a device that may not start. After an error, which is ErrMalformed for a bad
// image, call Abandon; the sockets still belong to the caller.
func (d *Device) Import(image []byte, sockets []int) error {
	return d.visitRest(&codec{way: reading, b: image}, sockets, nil)
}

// Abandon zeroes and closes a device that was prepared and not started. It leaves the sockets open,
// which belong to the device that was exported.
func (d *Device) Abandon() {
	d.state.bound = nil
	d.Close()
}
