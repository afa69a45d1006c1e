package worker

import (
	"errors"
	"fmt"
	"net"
	"os"
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
// handPatience. A successor that receives no "go" ends. The sessions are lost if the process ends
// before the commit, or the successor after it. The next process then begins as after any death.

// helloText is the first message. It has the versions of the protocol and of the state; the process
// refuses other versions.
var helloText = fmt.Sprintf("hello 3 %d", engine.Schema)

const (
	queuesWord  = "queues"
	readyText   = "ready"
	baseText    = "base"
	filledText  = "filled"
	stateWord   = "state"
	takenText   = "taken"
	goText      = "go"
	refusedWord = "refused"
	malformed   = "malformed"
)

const (
	// handPatience is the longest time for which a device stands still for a silent successor.
	handPatience = 500 * time.Millisecond
	// basePatience is the longest time in which a successor has to fill its device. The process
	// serves its own device meanwhile, and only configuration waits. 10,000 peers take 0.1 s.
	basePatience = 10 * time.Second
	// helloPatience is the time that a successor has for its first message.
	helloPatience = 2 * time.Second
	// handMessage bounds a message, bytes. handFDs bounds its descriptors (SCM_MAX_FD is 253).
	handMessage = 256
	handFDs     = 3 + 3*64
)

// Steps of a handover in the process that serves the device, for DeviceOptions.Step.
const (
	StepHello    = "hello"    // a successor has connected and is ready
	StepBase     = "base"     // the base is sent
	StepExported = "exported" // the threads are stopped, and the state is written
	StepSent     = "sent"     // the state is sent
	StepTaken    = "taken"    // the successor has confirmed that it has the state
	StepGone     = "gone"     // "go" is sent, and the keys are not forgotten yet
)

// Steps of a handover in the successor, for DeviceOptions.Step.
const (
	StepPrepared = "prepared" // its device exists, without state
	StepFilled   = "filled"   // the base is in the device
	StepReceived = "received" // the state and the descriptors are here
	StepImported = "imported" // the state is in the device
	StepTold     = "told"     // "taken" is sent
	StepGo       = "go"       // "go" is received
	StepStarted  = "started"  // the device sends
)

// handPath is the path of a device's handover socket.
func handPath(dir, device string) string { return dir + "/" + device + ".handover" }

// desk accepts processes that request the device.
type desk struct {
	l *net.UnixListener
	// asked receives the connection to each successor that is ready.
	asked chan *net.UnixConn
	end   chan struct{}

	mu     sync.Mutex
	queues []int // of the TUN; nil once the desk is closed
}

// openDesk makes the handover socket, mode 0600, and removes one that an earlier process left. The
// queues must stay open until close.
func openDesk(path string, queues []int) (*desk, error) {
	l, err := listenAt(path, "unixpacket")
	if err != nil {
		return nil, fmt.Errorf("listen for a successor: %w", err)
	}
	d := &desk{l: l, asked: make(chan *net.UnixConn), end: make(chan struct{}), queues: queues}
	go d.serve()
	return d, nil
}

func (d *desk) close() {
	close(d.end)
	d.l.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queues = nil
}

func (d *desk) serve() {
	for {
		c, err := d.l.AcceptUnix()
		if err != nil {
			return
		}
		go d.greet(c)
	}
}

func (d *desk) greet(c *net.UnixConn) {
	err := sameUser(c)
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(helloPatience))
		err = expect(c, helloText)
	}
	if err == nil {
		err = d.offer(c)
	}
	if err == nil {
		err = expect(c, readyText)
	}
	if err != nil {
		_ = say(c, refusedWord+" "+err.Error())
		c.Close()
		return
	}
	select {
	case d.asked <- c:
	case <-d.end:
		c.Close()
	}
}

// offer sends the queues of the TUN.
func (d *desk) offer(c *net.UnixConn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queues == nil {
		return errors.New("the device is closed")
	}
	return send(c, fmt.Sprintf("%s %d", queuesWord, len(d.queues)), d.queues)
}

// sameUser refuses the process of another user at the other end (SO_PEERCRED, unix(7)).
func sameUser(c *net.UnixConn) error {
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

// say sends one message.
func say(c *net.UnixConn, text string) error {
	_, err := c.Write([]byte(text[:min(len(text), handMessage)]))
	return err
}

// hear receives one message.
func hear(c *net.UnixConn) (string, error) {
	b := make([]byte, handMessage)
	n, err := c.Read(b)
	return string(b[:n]), err
}

// expect receives one message. It returns an error unless the message is text.
func expect(c *net.UnixConn, text string) error {
	got, err := hear(c)
	if err == nil && got != text {
		err = fmt.Errorf("it sends %q, want %q", got, text)
	}
	return err
}

// send sends one message with descriptors.
func send(c *net.UnixConn, text string, fds []int) error {
	_, _, err := c.WriteMsgUnix([]byte(text), unix.UnixRights(fds...), nil)
	return err
}

// parcel holds the descriptors that go with the state.
type parcel struct {
	image    int
	lock     int // -1: the process has none
	listener int // of the configuration socket
	sockets  []int
	// since is the time since boot at which the device began to stand still.
	since time.Duration
}

func (p *parcel) text() string {
	return fmt.Sprintf("%s %t %d %d", stateWord, p.lock >= 0, len(p.sockets), p.since)
}

func (p *parcel) fds() []int {
	fds := []int{p.image, p.listener}
	if p.lock >= 0 {
		fds = append(fds, p.lock)
	}
	return append(fds, p.sockets...)
}

// parseBase returns the descriptor of a message with the base.
func parseBase(text string, fds []int) (int, error) {
	if _, err := words(text, baseText, 0); err != nil {
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
	if len(f) > 0 && f[0] == refusedWord {
		return nil, fmt.Errorf("it refuses: %s", strings.TrimPrefix(text, refusedWord+" "))
	}
	if len(f) != 1+more || f[0] != first {
		return nil, fmt.Errorf("it sends %q, want %q", text, first)
	}
	return f[1:], nil
}

// parseQueues returns the descriptors of a message with the queues, at least one.
func parseQueues(text string, fds []int) ([]int, error) {
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

// parseParcel returns the descriptors of a message with the state, by their use.
func parseParcel(text string, fds []int) (*parcel, error) {
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

	p := &parcel{lock: -1, since: time.Duration(since)}
	fixed := 2
	if lock {
		fixed++
	}
	if len(fds) != fixed+int(sockets) {
		return nil, fmt.Errorf("it sends %q and %d descriptors", text, len(fds))
	}
	p.image, p.listener = fds[0], fds[1]
	if lock {
		p.lock = fds[2]
	}
	p.sockets = fds[fixed:]
	return p, nil
}

// receive receives a message with descriptors, and returns what parse makes of both. It closes the
// descriptors if it returns an error.
func receive[T any](c *net.UnixConn, parse func(string, []int) (T, error)) (T, error) {
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
		closeFDs(fds)
	}
	return out, err
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// sinceBoot returns the time since boot, which all processes of the machine share.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}
