package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/engine"
)

// Handover of a device to another process, over a SOCK_SEQPACKET socket beside the device's state:
//
//	successor                       process that serves the device
//	hello ───────────────────────→
//	      ←────── queues of the TUN
//	makes a device without state
//	ready ───────────────────────→
//	                                accepts no more configuration
//	      ←───────────────── base   the whole state, while it still serves
//	checks the base,
//	fills the device
//	filled ──────────────────────→
//	                                stops its threads: packets wait
//	      ←─── state + descriptors  what changed since the base
//	checks the state,
//	updates the device
//	taken ───────────────────────→
//	      ←─────────────────── go   the commit: forgets its keys and ends
//	starts: packets go on
//
// Packets wait from "filled" to the start. So all that can be done earlier is done earlier.
//
// Until the commit, the process goes on serving if the successor refuses, ends, or is silent for
// Patience. A successor that receives no "go" ends. The sessions are lost if the process ends
// before the commit, or the successor after it. The next process then begins as after any death.

// Hello is the first message. It has the versions of the protocol and of the state; the process
// refuses other versions.
var Hello = fmt.Sprintf("hello 3 %d", engine.Schema)

// Words of the protocol.
const (
	queuesWord = "queues"
	Ready      = "ready"
	Base       = "base"
	Filled     = "filled"
	stateWord  = "state"
	Taken      = "taken"
	Go         = "go"
	Refused    = "refused"
	Malformed  = "malformed"
)

const (
	// Patience is the longest time for which a device stands still for a silent successor.
	Patience = 500 * time.Millisecond
	// BasePatience is the longest time in which a successor has to fill its device. The process
	// serves its own device meanwhile, and only configuration waits. 10,000 peers take 0.1 s.
	BasePatience = 10 * time.Second
	// HelloPatience is the time that a successor has for its first message.
	HelloPatience = 2 * time.Second
	// handMessage bounds a message, bytes. handFDs bounds its descriptors (SCM_MAX_FD is 253).
	handMessage = 256
	handFDs     = 3 + 3*64
)

// Listen makes a socket with mode 0600 from the first moment, in place of a former one.
func Listen(path, network string) (*net.UnixListener, error) {
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

// Path is the path of a device's handover socket.
func Path(dir, device string) string { return dir + "/" + device + ".handover" }

// Desk accepts processes that request the device.
type Desk struct {
	l *net.UnixListener
	// Asked receives the connection to each successor that is ready.
	Asked chan *net.UnixConn
	end   chan struct{}

	mu     sync.Mutex
	queues []int // of the TUN; nil once the desk is closed
}

// OpenDesk makes the handover socket, mode 0600, and removes one that an earlier process left. The
// queues must stay open until close.
func OpenDesk(path string, queues []int) (*Desk, error) {
	l, err := Listen(path, "unixpacket")
	if err != nil {
		return nil, fmt.Errorf("listen for a successor: %w", err)
	}
	d := &Desk{l: l, Asked: make(chan *net.UnixConn), end: make(chan struct{}), queues: queues}
	go d.serve()
	return d, nil
}

// Close accepts no more of them.
func (d *Desk) Close() {
	close(d.end)
	d.l.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queues = nil
}

func (d *Desk) serve() {
	for {
		c, err := d.l.AcceptUnix()
		if err != nil {
			return
		}
		go d.greet(c)
	}
}

func (d *Desk) greet(c *net.UnixConn) {
	err := SameUser(c)
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(HelloPatience))
		err = Expect(c, Hello)
	}
	if err == nil {
		err = d.offer(c)
	}
	if err == nil {
		err = Expect(c, Ready)
	}
	if err != nil {
		_ = Say(c, Refused+" "+err.Error())
		c.Close()
		return
	}
	select {
	case d.Asked <- c:
	case <-d.end:
		c.Close()
	}
}

// offer sends the queues of the TUN.
func (d *Desk) offer(c *net.UnixConn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queues == nil {
		return errors.New("the device is closed")
	}
	return Send(c, fmt.Sprintf("%s %d", queuesWord, len(d.queues)), d.queues)
}

// SameUser refuses the process of another user at the other end (SO_PEERCRED, unix(7)).
func SameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("find the user of the other process: %w", err)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the other process is of user %d, want user %d as here", cred.Uid,
			os.Geteuid())
	}
	return nil
}

// Say sends one message.
func Say(c *net.UnixConn, text string) error {
	_, err := c.Write([]byte(text[:min(len(text), handMessage)]))
	return err
}

// Hear receives one message.
func Hear(c *net.UnixConn) (string, error) {
	b := make([]byte, handMessage)
	n, err := c.Read(b)
	return string(b[:n]), err
}

// Expect receives one message. It returns an error unless the message is text.
func Expect(c *net.UnixConn, text string) error {
	got, err := Hear(c)
	if err == nil && got != text {
		err = fmt.Errorf("it sends %q, want %q", got, text)
	}
	return err
}

// Send sends one message with descriptors.
func Send(c *net.UnixConn, text string, fds []int) error {
	_, _, err := c.WriteMsgUnix([]byte(text), unix.UnixRights(fds...), nil)
	return err
}

// Parcel holds the descriptors that go with the state.
type Parcel struct {
	Image    int
	Lock     int // -1: the process has none
	Listener int // of the configuration socket
	Sockets  []int
	// Since is the time since boot at which the device began to stand still.
	Since time.Duration
}

// Text is the message that they go with.
func (p *Parcel) Text() string {
	return fmt.Sprintf("%s %t %d %d", stateWord, p.Lock >= 0, len(p.Sockets), p.Since)
}

// FDs are all of them, in the order of ParseParcel.
func (p *Parcel) FDs() []int {
	fds := []int{p.Image, p.Listener}
	if p.Lock >= 0 {
		fds = append(fds, p.Lock)
	}
	return append(fds, p.Sockets...)
}

// ParseBase returns the descriptor of a message with the base.
func ParseBase(text string, fds []int) (int, error) {
	if _, err := words(text, Base, 0); err != nil {
		return -1, err
	}
	if len(fds) != 1 {
		return -1, fmt.Errorf("it sends %q and %d descriptors", text, len(fds))
	}
	return fds[0], nil
}

// words returns the words of a message after its first. The first must be first, and more is how
// many must follow.
func words(text, first string, more int) ([]string, error) {
	f := strings.Fields(text)
	if len(f) > 0 && f[0] == Refused {
		return nil, fmt.Errorf("it refuses: %s", strings.TrimPrefix(text, Refused+" "))
	}
	if len(f) != 1+more || f[0] != first {
		return nil, fmt.Errorf("it sends %q, want %q", text, first)
	}
	return f[1:], nil
}

// ParseQueues returns the descriptors of a message with the queues, at least one.
func ParseQueues(text string, fds []int) ([]int, error) {
	f, err := words(text, queuesWord, 1)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(f[0], 10, 8)
	if err != nil {
		return nil, fmt.Errorf("it sends %q: %w", text, err)
	}
	if n == 0 || len(fds) != int(n) {
		return nil, fmt.Errorf("it sends %q and %d descriptors", text, len(fds))
	}
	return fds, nil
}

// ParseParcel returns the descriptors of a message with the state, by their use.
func ParseParcel(text string, fds []int) (*Parcel, error) {
	f, err := words(text, stateWord, 3)
	if err != nil {
		return nil, err
	}

	lock, err := strconv.ParseBool(f[0])
	sockets, err2 := strconv.ParseUint(f[1], 10, 8)
	since, err3 := strconv.ParseUint(f[2], 10, 63)
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, fmt.Errorf("it sends %q: %w", text, err)
	}

	p := &Parcel{Lock: -1, Since: time.Duration(since)}
	fixed := 2
	if lock {
		fixed++
	}
	if len(fds) != fixed+int(sockets) {
		return nil, fmt.Errorf("it sends %q and %d descriptors", text, len(fds))
	}
	p.Image, p.Listener = fds[0], fds[1]
	if lock {
		p.Lock = fds[2]
	}
	p.Sockets = fds[fixed:]
	return p, nil
}

// Receive receives a message with descriptors, and returns what parse makes of both. It closes the
// descriptors if it returns an error.
func Receive[T any](c *net.UnixConn, parse func(string, []int) (T, error)) (T, error) {
	var out T
	b, oob := make([]byte, handMessage), make([]byte, unix.CmsgSpace(4*handFDs))
	n, k, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return out, err
	}

	var fds []int
	messages, err := unix.ParseSocketControlMessage(oob[:k])
	for i := range messages {
		more, e := unix.ParseUnixRights(&messages[i])
		fds, err = append(fds, more...), errors.Join(err, e)
	}
	if err == nil && flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		err = errors.New("a message is too long")
	}
	if err == nil {
		out, err = parse(string(b[:n]), fds)
	}
	if err != nil {
		CloseFDs(fds)
	}
	return out, err
}

// CloseFDs closes descriptors.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// SinceBoot returns the time since boot, which all processes of the machine share.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}
