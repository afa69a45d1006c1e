package engine

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/engine/sock"
	"github.com/kubeveil/kubeveil/pkg/engine/uapi"
)

// observed is the part of a peer's state that changes without configuration.
type observed struct {
	sent, received uint64
	endpoint       *sock.Endpoint
	handshake      time.Time
}

// Changed writes a line with the current revision, and then each peer whose counters, endpoint or
// handshake changed after the revision since, in the format of IpcGetOperation. If since is empty,
// it writes no peer. It returns unix.ESTALE if the configuration changed after since, or if since
// is of another device: a client then reads everything.
func (d *Device) Changed(since string, w io.Writer) error {
	revision, peers, err := d.changedAfter(since)
	if err != nil {
		return err
	}
	defer clear(peers)
	if _, err := fmt.Fprintf(w, "revision=%s\n", revision); err != nil {
		return err
	}
	return (&uapi.DeviceState{Peers: peers}).Write(w)
}

// changedAfter returns the current revision and the peers that changed after an earlier one.
func (d *Device) changedAfter(since string) (revision string, peers []uapi.PeerState, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing.Load() {
		return "", nil, errClosed
	}
	d.mu.looks++
	valid, last := fmt.Sprintf("%x.%d.", d.instance, d.mu.configured), d.mu.looks
	if since != "" {
		look, ok := strings.CutPrefix(since, valid)
		if last, err = strconv.ParseUint(look, 10, 64); !ok || err != nil {
			return "", nil, unix.ESTALE
		}
	}

	for _, p := range d.mu.order {
		o := observed{p.sentBytes.Load(), p.rxBytes.Load(), p.endpoint.Load(), p.lastHandshake}
		if o != p.observed {
			p.observed, p.changed = o, d.mu.looks
		}
		if p.changed > last {
			peers = append(peers, p.state())
		}
	}
	return valid + strconv.FormatUint(d.mu.looks, 10), peers, nil
}
