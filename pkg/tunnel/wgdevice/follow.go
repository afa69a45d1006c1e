package wgdevice

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// followed is the last reading of a device of veil-wg. The next readings add what changed since, so
// that their cost follows the peers with traffic and not all peers.
type followed struct {
	// revision is the device's revision of the reading. Empty means that there is no reading.
	revision string
	state    tunnel.DeviceState
	index    map[wgkey.Public]int // in state.Peers, by key
	// again is when a veil-wg that does not report changes, as an older release, is asked again.
	again time.Time
}

// followAgain is the pause before a veil-wg that does not report changes is asked again.
const followAgain = time.Minute

// begin returns the present revision of a device, or "" if veil-wg does not report it.
func (f *followed) begin(socket string) (revision string) {
	f.revision = ""
	if time.Now().Before(f.again) {
		return ""
	}
	err := ask(socket, "changed=", func(name, value string) error {
		if name == "revision" {
			revision = value
		}
		return nil
	})
	if err != nil {
		revision = ""
		if !unserved(err) && !errors.Is(err, fs.ErrNotExist) {
			f.again = time.Now().Add(followAgain)
		}
	}
	return revision
}

// keep keeps a reading that followed a call of begin.
func (f *followed) keep(st tunnel.DeviceState, revision string) {
	f.revision, f.state, f.index = revision, st, make(map[wgkey.Public]int, len(st.Peers))
	f.state.Peers = slices.Clone(st.Peers) // the caller changes its own
	for i, p := range st.Peers {
		f.index[p.PublicKey] = i
	}
}

// update adds what changed to the kept reading, and copies the reading to st. It returns false if
// the device must be read as a whole.
func (f *followed) update(socket string, st *tunnel.DeviceState) bool {
	if f.revision == "" {
		return false
	}

	p, seconds := &tunnel.PeerState{}, int64(0)
	err := ask(socket, "changed="+f.revision, func(name, value string) (err error) {
		switch name {
		case "revision":
			f.revision = value
		case "public_key":
			var key wgkey.Public
			n, err := hex.Decode(key[:], []byte(value))
			i, known := f.index[key]
			if err != nil || n != len(key) || !known {
				return fmt.Errorf("unknown peer %q", value)
			}
			p = &f.state.Peers[i]
		case "endpoint":
			p.Endpoint, err = netip.ParseAddrPort(value)
		case "last_handshake_time_sec":
			seconds, err = strconv.ParseInt(value, 10, 64)
		case "last_handshake_time_nsec":
			var rest int64
			if rest, err = strconv.ParseInt(value, 10, 64); seconds != 0 || rest != 0 {
				p.LastHandshake = time.Unix(seconds, rest)
			}
		case "tx_bytes":
			p.Sent, err = strconv.ParseInt(value, 10, 64)
		case "rx_bytes":
			p.Received, err = strconv.ParseInt(value, 10, 64)
		}
		return err
	})
	if err != nil {
		return false
	}

	st.Served, st.PublicKey, st.ListenPort = true, f.state.PublicKey, f.state.ListenPort
	st.Mark, st.Peers = f.state.Mark, slices.Clone(f.state.Peers)
	return true
}
