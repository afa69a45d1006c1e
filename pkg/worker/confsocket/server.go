package confsocket

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/worker/handover"
	"github.com/kubeveil/kubeveil/pkg/worker/logs"
)

// Device is the part of a device that a configuration socket needs.
type Device interface {
	IpcGetOperation(w io.Writer) error
	IpcSetOperation(r io.Reader) error
}

// dropCounter is a Device that counts drops, see engine.Device.
type dropCounter interface {
	Drops() map[string]uint64
	NoteRefused()
}

// offloader is a Device that reports and changes its offloads, see engine.Device.
type offloader interface {
	Offloads() engine.Offloads
	SendSingly(peer noise.PublicKey) error
}

// follower is a Device that reports what changed, see engine.Device.
type follower interface {
	Changed(since string, w io.Writer) error
}

// Server answers clients in the cross-platform configuration protocol
// (https://www.wireguard.com/xplatform/) and keeps the configuration in a file. Besides "get" and
// "set" it supports
//
//	drops=1        returns a line REASON=COUNT for each reason of drops
//	offloads=1     returns a line NAME=1 or NAME=0 for each offload, and singly=KEY for each peer
//	               to which datagrams are sent one by one
//	singly=KEY     send datagrams to this peer one by one
//	changed=SINCE  returns a line revision=REVISION and the peers whose counters, endpoint or
//	               handshake changed after the revision SINCE; no peers without SINCE, and the error
//	               ESTALE if the client must get everything again
//
// where KEY is a public key in hexadecimal digits.
type Server struct {
	Device  Device
	State   string // path of the state file
	Changed func() // called after each set; may be nil

	// gate is held for reading while an operation runs, and for writing during a handover. It is
	// never held during a wait for a client.
	gate    sync.RWMutex
	clients clients

	mu sync.Mutex // one set at a time, so that the kept state is the last one
	// whole is the size of the state file when it was last rewritten, bytes. appended is the size
	// of what sets have appended since. If whole is 0, the next set rewrites the file.
	whole, appended int
}

// Listen makes the configuration socket of a device. No client can connect before the socket has
// mode 0600. It replaces a socket that has no listener.
func Listen(path string) (*net.UnixListener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("configuration socket %s: %w: another program serves it", path,
			unix.EADDRINUSE)
	}
	l, err := handover.Listen(path, "unix")
	if err != nil {
		return nil, fmt.Errorf("listen for configuration: %w", err)
	}
	return l, nil
}

// answer performs an operation and returns the reply to the client. It returns nil if op is not an
// operation of the protocol.
func (s *Server) answer(op string, body []byte) []byte {
	s.gate.RLock()
	defer s.gate.RUnlock()

	var answer bytes.Buffer
	var err error
	switch op {
	case "get=1\n":
		err = s.Device.IpcGetOperation(&answer)
	case "set=1\n":
		err = s.set(body)
	case "drops=1\n":
		err = s.drops(&answer)
	case "offloads=1\n":
		err = s.offloads(&answer)
	default:
		name, value, _ := strings.Cut(strings.TrimSuffix(op, "\n"), "=")
		switch name {
		case "singly":
			err = s.singly(value)
		case "changed":
			err = s.changed(value, &answer)
		default:
			s.refuse()
			return nil
		}
	}
	fmt.Fprintf(&answer, "errno=%d\n\n", errno(err))
	return answer.Bytes()
}

// refuse counts a refused request that was not passed to the device.
func (s *Server) refuse() {
	if c, ok := s.Device.(dropCounter); ok {
		c.NoteRefused()
	}
}

// drops writes the number of drops by reason.
func (s *Server) drops(w io.Writer) error {
	c, ok := s.Device.(dropCounter)
	if !ok {
		return unix.EOPNOTSUPP
	}
	counts := c.Drops()
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(w, "%s=%d\n", reason, counts[reason])
	}
	return nil
}

// offloads writes which offloads the device uses, and the peers without segmented datagrams.
func (s *Server) offloads(w io.Writer) error {
	d, ok := s.Device.(offloader)
	if !ok {
		return unix.EOPNOTSUPP
	}
	o := d.Offloads()
	for _, v := range []struct {
		name string
		on   bool
	}{{"udp_segment", o.Segment}, {"udp_gro", o.Receive}, {"tun_tcp", o.TCP}, {"tun_udp", o.UDP}} {
		n := 0
		if v.on {
			n = 1
		}
		fmt.Fprintf(w, "%s=%d\n", v.name, n)
	}
	for _, key := range o.Singly {
		fmt.Fprintf(w, "singly=%x\n", key[:])
	}
	return nil
}

// changed writes the peers that changed after a revision.
func (s *Server) changed(since string, w io.Writer) error {
	d, ok := s.Device.(follower)
	if !ok {
		return unix.EOPNOTSUPP
	}
	return d.Changed(since, w)
}

// singly makes the device send datagrams one by one to the peer with the key text.
func (s *Server) singly(text string) error {
	d, ok := s.Device.(offloader)
	if !ok {
		return unix.EOPNOTSUPP
	}
	var key noise.PublicKey
	if b, err := hex.DecodeString(text); err != nil || copy(key[:], b) != len(b) ||
		len(b) != len(key) {
		s.refuse()
		return unix.EINVAL
	}
	if err := d.SendSingly(key); err != nil {
		s.refuse()
		return unix.ENOENT
	}
	return nil
}

// Hold waits until no operation runs, and blocks new operations until Release. It returns false,
// and blocks nothing, if that takes longer than patience.
func (s *Server) Hold(patience time.Duration) bool {
	held := make(chan struct{})
	go func() {
		s.gate.Lock()
		close(held)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-held:
		return true
	case <-timer.C:
		go func() {
			<-held
			s.gate.Unlock()
		}()
		return false
	}
}

// Release ends a successful Hold.
func (s *Server) Release() { s.gate.Unlock() }

// set applies a set to the device and keeps the new state. If the set fails, it keeps the state
// that the device has then.
func (s *Server) set(body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.Device.IpcSetOperation(bytes.NewReader(body))
	if err != nil || !s.extend(body) {
		err = errors.Join(err, s.keep())
	}
	if s.Changed != nil {
		s.Changed()
	}
	return err
}

// extend appends a set to the state file, and reports whether it did. So a change of one peer does
// not rewrite a thousand peers. It appends only sets without settings of the device, because these
// cannot follow the section of a peer. It does not append the name of an interface (%): a kept
// state holds numbers instead, so that the state can be read without the interface. The file is
// rewritten before more than half of it is appended sets.
func (s *Server) extend(body []byte) bool {
	if !bytes.HasPrefix(body, []byte("public_key=")) || s.appended+len(body) > s.whole ||
		bytes.IndexByte(body, '%') >= 0 {
		return false
	}
	if err := extend(s.State, int64(s.whole+s.appended), body); err != nil {
		return false
	}
	s.appended += len(body)
	return true
}

// keep rewrites the state file.
func (s *Server) keep() error {
	s.whole, s.appended = 0, 0
	var get bytes.Buffer
	if err := s.Device.IpcGetOperation(&get); err != nil {
		return fmt.Errorf("read own state: %w", err)
	}
	state := configuration(get.Bytes())
	if err := save(s.State, state); err != nil {
		return err
	}
	s.whole = len(state)
	return nil
}

// errno returns the number of the protocol for err: 0 or a negative errno.
func errno(err error) int64 {
	var coded interface{ ErrorCode() int64 }
	//nolint:errorlint // A wrapped errno comes from the state file and is not for clients.
	bare, ok := err.(unix.Errno)
	switch {
	case err == nil:
		return 0
	case ok:
		return -int64(bare)
	case errors.As(err, &coded):
		return coded.ErrorCode()
	}
	return -int64(unix.EIO)
}

// Restore applies the kept state to the device. If the device refuses the state, Restore logs a
// warning and leaves the device without configuration. It returns an error if the state file cannot
// be read.
func (s *Server) Restore(log *slog.Logger) error {
	b, err := load(s.State)
	if err != nil {
		return err
	}
	if err := s.Device.IpcSetOperation(bytes.NewReader(configuration(b))); err != nil {
		log.Warn("the saved state cannot be used; beginning without peers", "file", s.State,
			"err", logs.Redact(err.Error()))
		empty :=
			"private_key=0000000000000000000000000000000000000000000000000000000000000000\nreplace_peers=true\n"
		return s.Device.IpcSetOperation(bytes.NewReader([]byte(empty)))
	}
	return nil
}
