package worker

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// configurer is the part of a device that a configuration socket needs.
type configurer interface {
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

// server speaks the cross-platform configuration protocol
// (https://www.wireguard.com/xplatform/) and keeps what was set. Beside "get" and "set" it knows
//
//	drops=1        a line for each reason: its name, an equals sign and the number
//	offloads=1     a line for each offload, 1 or 0, and singly=KEY for each peer to which datagrams
//	               are sent one by one
//	singly=KEY     send datagrams to this peer one by one
//
// where KEY is a public key in hexadecimal digits.
type server struct {
	dev     configurer
	state   string
	changed func() // called after each set; may be nil

	// gate is held for reading while an operation is done, and for writing during a handover. No
	// client is waited for with it held.
	gate    sync.RWMutex
	clients clients

	mu sync.Mutex // one set at a time, so that the kept state is the last one
	// whole is the size in bytes of the state file when it was last rewritten, appended the size of
	// what sets appended since. With 0 the next set rewrites it.
	whole, appended int
}

// listen makes the configuration socket of a device, with mode 0600 from the first moment. It
// replaces a socket without a listener.
func listen(path string) (*net.UnixListener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("configuration socket %s: %w: another program serves it", path,
			unix.EADDRINUSE)
	}
	l, err := listenAt(path, "unix")
	if err != nil {
		return nil, fmt.Errorf("listen for configuration: %w", err)
	}
	return l, nil
}

// listenAt makes a socket with mode 0600 from the first moment, in place of a former one.
func listenAt(path, network string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make directory of sockets: %w", err)
	}
	tmp := path + ".new"
	os.Remove(tmp)
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: tmp, Net: network})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(tmp, 0o600); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		l.Close()
		os.Remove(tmp)
		return nil, err
	}
	return l, nil
}

// answer does an operation and returns the reply to the client. It returns nothing if op is not an
// operation of the protocol.
func (s *server) answer(op string, body []byte) []byte {
	s.gate.RLock()
	defer s.gate.RUnlock()
	var answer bytes.Buffer
	var err error
	switch op {
	case "get=1\n":
		err = s.dev.IpcGetOperation(&answer)
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
func (s *server) refuse() {
	if c, ok := s.dev.(dropCounter); ok {
		c.NoteRefused()
	}
}

// drops writes how often something was dropped, by reason.
func (s *server) drops(w io.Writer) error {
	c, ok := s.dev.(dropCounter)
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
func (s *server) offloads(w io.Writer) error {
	d, ok := s.dev.(offloader)
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
func (s *server) singly(text string) error {
	d, ok := s.dev.(offloader)
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

// hold waits until no operation is under way and lets none begin until release. It returns false
// when that takes too long.
func (s *server) hold(patience time.Duration) bool {
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

func (s *server) release() { s.gate.Unlock() }

// set changes the device and keeps what came of it, also of a set that failed half way.
func (s *server) set(body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.dev.IpcSetOperation(bytes.NewReader(body))
	if err != nil || !s.extend(body) {
		err = errors.Join(err, s.keep())
	}
	if s.changed != nil {
		s.changed()
	}
	return err
}

// extend appends a set to the stored state and reports whether it did: changing one peer need not
// read and write a thousand. Sections of peers may follow others in one set; settings of the device
// may not. An interface's name may not either: a kept state has numbers, which need no interface to
// be read. The file is rewritten once more than half of it was appended.
func (s *server) extend(body []byte) bool {
	if !bytes.HasPrefix(body, []byte("public_key=")) || s.appended+len(body) > s.whole ||
		bytes.IndexByte(body, '%') >= 0 {
		return false
	}
	if err := extend(s.state, int64(s.whole+s.appended), body); err != nil {
		return false
	}
	s.appended += len(body)
	return true
}

func (s *server) keep() error {
	s.whole, s.appended = 0, 0
	var get bytes.Buffer
	if err := s.dev.IpcGetOperation(&get); err != nil {
		return fmt.Errorf("read own state: %w", err)
	}
	state := configuration(get.Bytes())
	if err := save(s.state, state); err != nil {
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
