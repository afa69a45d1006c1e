package worker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/engine"
)

// Handover of a device to another process, over a socket of packets beside the device's state:
//
//	successor                       process that serves the device
//	hello ───────────────────────→
//	                                no configuration, no thread, no packet
//	      ←── state + descriptors
//	checks it, makes a device
//	that stands still
//	taken ───────────────────────→
//	      ←─────────────────── go   the commit: forgets its keys and ends
//	starts
//
// Before the commit the process goes on when the successor refuses, is silent for handPatience or
// ends; the successor ends without "go". If the process ends before it, or the successor after it,
// the sessions are lost, and the next process begins as after any other death.

// helloText is the first message; another version of the protocol or of the state is refused.
var helloText = fmt.Sprintf("hello 1 %d", engine.Schema)

const (
	stateWord   = "state"
	takenText   = "taken"
	goText      = "go"
	refusedWord = "refused"
	malformed   = "malformed"
)

const (
	// handPatience is how long a device stands still for a successor that says nothing.
	handPatience = 500 * time.Millisecond
	// helloPatience is how long one may take to say the first word.
	helloPatience = 2 * time.Second
	// handMessage bounds a message, bytes; handFDs the descriptors of one (SCM_MAX_FD is 253).
	handMessage = 256
	handFDs     = 3 + 3*64
)

// Steps of a handover, for DeviceOptions.Step.
const (
	StepHello    = "hello"    // the process was asked
	StepExported = "exported" // it stands still
	StepSent     = "sent"     // the state is sent
	StepTaken    = "taken"    // the successor has said that it has it
	StepGone     = "gone"     // "go" is sent, and the keys are not forgotten yet
	StepReceived = "received" // the successor has the state
	StepImported = "imported" // and has made a device of it
	StepTold     = "told"     // and has said so
	StepGo       = "go"       // and has read "go"
)

// handPath is the path of a device's handover socket.
func handPath(dir, device string) string { return dir + "/" + device + ".handover" }

// desk accepts those who ask for the device.
type desk struct {
	l *net.UnixListener
	// asked gets a connection on which the first message was right.
	asked chan *net.UnixConn
	end   chan struct{}
}

// openDesk makes the handover socket, mode 0600, in place of a former one.
func openDesk(path string) (*desk, error) {
	l, err := listenAt(path, "unixpacket")
	if err != nil {
		return nil, fmt.Errorf("listen for a successor: %w", err)
	}
	d := &desk{l: l, asked: make(chan *net.UnixConn), end: make(chan struct{})}
	go d.serve()
	return d, nil
}

func (d *desk) close() {
	close(d.end)
	d.l.Close()
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
		var text string
		if text, err = hear(c); err == nil && text != helloText {
			err = fmt.Errorf("it says %q, want %q", text, helloText)
		}
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
		return fmt.Errorf("look who is there: %w", err)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d may not: the device is served by user %d", cred.Uid,
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

// parcel is what goes with the state.
type parcel struct {
	image    int
	lock     int // -1: the process has none
	listener int // of the configuration socket
	queues   []int
	sockets  []int
}

func (p *parcel) text() string {
	return fmt.Sprintf("%s %t %d %d", stateWord, p.lock >= 0, len(p.queues), len(p.sockets))
}

func (p *parcel) fds() []int {
	fds := []int{p.image, p.listener}
	if p.lock >= 0 {
		fds = append(fds, p.lock)
	}
	return append(append(fds, p.queues...), p.sockets...)
}

// parseParcel sorts the descriptors of a message.
func parseParcel(text string, fds []int) (*parcel, error) {
	f := strings.Fields(text)
	if len(f) > 0 && f[0] == refusedWord {
		return nil, fmt.Errorf("it refuses: %s", strings.TrimPrefix(text, refusedWord+" "))
	}
	if len(f) != 4 || f[0] != stateWord {
		return nil, fmt.Errorf("it says %q, want %q", text, stateWord)
	}

	lock, err := strconv.ParseBool(f[1])
	queues, err2 := strconv.ParseUint(f[2], 10, 8)
	sockets, err3 := strconv.ParseUint(f[3], 10, 8)
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, fmt.Errorf("it says %q: %w", text, err)
	}

	p := &parcel{lock: -1}
	fixed := 2
	if lock {
		fixed++
	}
	if queues == 0 || len(fds) != fixed+int(queues+sockets) {
		return nil, fmt.Errorf("it says %q and sends %d descriptors", text, len(fds))
	}
	p.image, p.listener = fds[0], fds[1]
	if lock {
		p.lock = fds[2]
	}
	p.queues, p.sockets = fds[fixed:fixed+int(queues)], fds[fixed+int(queues):]
	return p, nil
}

// receive receives a message with descriptors. Those that are no parcel are closed.
func receive(c *net.UnixConn) (*parcel, error) {
	b, oob := make([]byte, handMessage), make([]byte, unix.CmsgSpace(4*handFDs))
	n, k, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}

	var fds []int
	messages, err := unix.ParseSocketControlMessage(oob[:k])
	for i := range messages {
		more, e := unix.ParseUnixRights(&messages[i])
		fds, err = append(fds, more...), errors.Join(err, e)
	}
	var p *parcel
	if err == nil && flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		err = errors.New("a message is too long")
	}
	if err == nil {
		p, err = parseParcel(string(b[:n]), fds)
	}
	if err != nil {
		closeFDs(fds)
		return nil, err
	}
	return p, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
