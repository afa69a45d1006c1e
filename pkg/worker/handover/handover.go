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
// Packets wait from "filled" to the start. So all work that can be done earlier is done earlier.
//
// Until the commit, the serving process continues if the successor refuses, ends, or is silent for
// Patience. A successor that receives no "go" ends. The sessions are lost if the serving process
// dies before the commit, or the successor after it. The next process then starts as after any
// death.

// Hello is the first message. It holds the versions of the protocol and of the state. The serving
// process refuses other versions.
var Hello = fmt.Sprintf("hello 3 %d", engine.Schema)

// First words of messages. Malformed follows Refused.
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
	// Patience is the longest time for which a device is stopped because of a silent successor.
	Patience = 500 * time.Millisecond
	// BasePatience is the time in which a successor must fill its device. Meanwhile the serving
	// process continues, and only configuration waits. 10,000 peers take 0.1 s.
	BasePatience = 10 * time.Second
	// HelloPatience is the time in which a successor must send its messages up to "ready". Meanwhile
	// the serving process continues. On a busy node the preparation takes seconds.
	HelloPatience = 10 * time.Second
	// handMessage bounds the size of a message, bytes. handFDs bounds its descriptors (SCM_MAX_FD
	// is 253).
	handMessage = 256
	handFDs     = 3 + 3*64
)

// Listen makes a listening socket at path and replaces an old one. No client can connect before the
// socket has mode 0600.
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

// Path returns the path of a device's handover socket.
func Path(dir, device string) string { return dir + "/" + device + ".handover" }

// Desk accepts the connections of successors. It runs the protocol with them up to "ready".
type Desk struct {
	l *net.UnixListener
	// Asked delivers the connection to each successor that has sent "ready". The receiver closes
	// it.
	Asked chan *net.UnixConn
	end   chan struct{}

	mu     sync.Mutex
	queues []int // the queues of the TUN; nil once the desk is closed
}

// OpenDesk makes the handover socket, with mode 0600, and replaces the socket of an earlier
// process. The queues must stay open until Close.
func OpenDesk(path string, queues []int) (*Desk, error) {
	l, err := Listen(path, "unixpacket")
	if err != nil {
		return nil, fmt.Errorf("listen for a successor: %w", err)
	}
	d := &Desk{l: l, Asked: make(chan *net.UnixConn), end: make(chan struct{}), queues: queues}
	go d.serve()
	return d, nil
}

// Close closes the handover socket. No successor receives the queues after it.
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

// offer sends the queues of the TUN to a successor.
func (d *Desk) offer(c *net.UnixConn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queues == nil {
		return errors.New("the device is closed")
	}
	return Send(c, fmt.Sprintf("%s %d", queuesWord, len(d.queues)), d.queues)
}

// SameUser returns an error if the process at the other end of c has another user id (SO_PEERCRED,
// unix(7)).
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

// Say sends one message without descriptors.
func Say(c *net.UnixConn, text string) error {
	_, err := c.Write([]byte(text[:min(len(text), handMessage)]))
	return err
}

// Hear receives one message without descriptors.
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

// Parcel holds the descriptors of the message with the state.
type Parcel struct {
	Image    int
	Lock     int // -1 if the serving process has no lock
	Listener int // the listening configuration socket
	Sockets  []int
	// Since is the time since boot at which the serving process began to stop the device.
	Since time.Duration
}

// Text returns the text of the message.
func (p *Parcel) Text() string {
	return fmt.Sprintf("%s %t %d %d", stateWord, p.Lock >= 0, len(p.Sockets), p.Since)
}

// FDs returns all descriptors, in the order that ParseParcel expects.
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

// words returns the words of a message after its first. It returns an error unless the first word
// is first and exactly more words follow.
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

// ParseParcel assigns the descriptors of a message with the state to the fields of a Parcel.
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

// Receive receives a message with descriptors, and returns the result of parse for them. It closes
// the descriptors if it returns an error.
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
