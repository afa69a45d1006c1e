package engine

import (
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/engine/secret"
)

// Handover is a device that stands still so that another process can go on in its place. Exactly
// one of Resume and Commit ends it. Until then the device neither reads nor sends, and
// configuration waits.
//
// Only one of the two processes may send afterwards. So the successor starts no thread before it
// knows of Commit, and the device that has committed has forgotten its keys.
type Handover struct {
	// Image is the state of the device, in memory for the successor. Resume and Commit overwrite
	// and close it.
	Image *secret.Sealed

	d *Device
}

// Export stops the device and returns its state.
func (d *Device) Export() (*Handover, error) {
	d.mu.Lock()
	if d.closing.Load() {
		d.mu.Unlock()
		return nil, errClosed
	}
	d.halt()
	image, err := d.image()
	if err != nil {
		d.run()
		d.mu.Unlock()
		return nil, fmt.Errorf("export the device: %w", err)
	}
	return &Handover{Image: image, d: d}, nil
}

// Sockets returns the descriptors of the UDP sockets, in the order in which Import wants them. The
// device closes its own when it commits.
func (h *Handover) Sockets() (fds []int) {
	if b := h.d.bound; b != nil {
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
	h.Image.Close()
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
	h.Image.Close()
	first := !h.d.closing.Swap(true)
	h.d.mu.Unlock()
	if first {
		h.d.finish()
	}
}

// Prepare makes a device that stands still and has no state yet: all of it that takes time and that
// a successor can have while the device is still served. Import follows, or Abandon.
func Prepare(o Options) (*Device, error) { return build(o) }

// Import makes a device that Prepare returned what an image says, with the queues and sockets of
// the device that was exported. The device sends nothing and reads no packet before Start; Abandon
// is for one that may not start. After an error, which is ErrMalformed for a bad image, Abandon
// must follow, and the sockets stay the caller's.
func (d *Device) Import(image []byte, sockets []int) error {
	if err := d.read(image, sockets); err != nil {
		return err
	}
	for _, s := range d.shards {
		s.rx.join.NoUDP = !d.udpOffload
	}
	return nil
}

// Abandon zeroes and closes a device that was prepared and not started. It leaves the sockets open,
// which belong to the device that was exported.
func (d *Device) Abandon() {
	d.bound = nil
	d.Close()
}
