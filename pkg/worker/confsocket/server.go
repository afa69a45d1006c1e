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

// dropCounter is a configurer that counts what it drops.
type dropCounter interface {
	Drops() map[string]uint64
	NoteRefused()
}

// offloader is a configurer that reports and changes its offloads.
type offloader interface {
	Offloads() engine.Offloads
	SendSingly(peer noise.PublicKey) error
}

// Server speaks the cross-platform configuration protocol
// (https://www.wireguard.com/xplatform/) and keeps what was set. Beside "get" and "set" it knows
//
//	drops=1        a line for each reason: its name, an equals sign and the number
//	offloads=1     a line for each offload, 1 or 0, and singly=KEY for each peer to which datagrams
//	               are sent one by one
//	singly=KEY     send datagrams to this peer one by one
//
// where KEY is a public key in hexadecimal digits.
type Server struct {
	Device  Device
	State   string
	Changed func() // called after each set; may be nil

	// gate is held for reading while an operation is done, and for writing during a handover. No
	// client is waited for with it held.
	gate    sync.RWMutex
	clients clients

	mu sync.Mutex // one set at a time, so that the kept state is the last one
	// whole is the size in bytes of the state file when it was last rewritten, appended the size of
	// what sets appended since. With 0 the next set rewrites it.
	whole, appended int
}

// Listen makes the configuration socket of a device, with mode 0600 from the first moment. It
// replaces a socket without a listener.
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

// answer does an operation and returns the reply to the client. It returns nothing if op is not an
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
		key, ok := strings.CutPrefix(op, "singly=")
		if !ok {
			s.refuse()
			return nil
		}
		err = s.singly(strings.TrimSuffix(key, "\n"))
	}
	fmt.Fprintf(&answer, "errno=%d\n\n", errno(err))
	return answer.Bytes()
}

// refuse counts a request that the device does not see.
func (s *Server) refuse() {
	if c, ok := s.Device.(dropCounter); ok {
		c.NoteRefused()
	}
}

// drops writes how often something was dropped, by reason.
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

// offloads writes which offloads the device uses.
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

// singly makes the device send datagrams to a peer one by one.
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

// Hold waits until no operation is under way and lets none begin until release. It returns false
// when that takes too long.
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

// Release lets operations begin again.
func (s *Server) Release() { s.gate.Unlock() }

// set changes the device and keeps what came of it, also of a set that failed half way.
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

// extend appends a set to the stored state and reports whether it did: changing one peer need not
// read and write a thousand. Sections of peers may follow others in one set; settings of the device
// may not. An interface's name may not either: a kept state has numbers, which need no interface to
// be read. The file is rewritten once more than half of it was appended.
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

// errno is the number that the protocol has for err.
func errno(err error) int64 {
	var coded interface{ ErrorCode() int64 }
	//nolint:errorlint // One that is wrapped is of the state file.
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

// Restore sets the device to the kept state. One that it does not take is
// a warning: the device begins empty and waits to be configured.
func (s *Server) Restore(log *slog.Logger) error {
	b, err := load(s.State)
	if err != nil {
		return err
	}
	if err := s.Device.IpcSetOperation(bytes.NewReader(configuration(b))); err != nil {
		log.Warn("kept state is not usable, beginning empty", "file", s.State,
			"err", logs.Redact(err.Error()))
		empty :=
			"private_key=0000000000000000000000000000000000000000000000000000000000000000\nreplace_peers=true\n"
		return s.Device.IpcSetOperation(bytes.NewReader([]byte(empty)))
	}
	return nil
}
