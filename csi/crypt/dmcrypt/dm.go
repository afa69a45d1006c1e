package dmcrypt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The interface of /dev/mapper/control (include/uapi/linux/dm-ioctl.h).
const (
	dmControl = "/dev/mapper/control"

	dmIoctlSize  = 312
	dmTargetSize = 40
	dmNameLen    = 128
	dmUUIDLen    = 129

	dmVersion     = 0
	dmListDevices = 2
	dmDevCreate   = 3
	dmDevRemove   = 4
	dmDevSuspend  = 6
	dmTableLoad   = 9
	dmTableClear  = 10
	dmTableStatus = 12

	dmReadOnlyFlag      = 1 << 0
	dmSuspendFlag       = 1 << 1
	dmStatusTableFlag   = 1 << 4
	dmInactiveFlag      = 1 << 6
	dmBufferFullFlag    = 1 << 8
	dmSkipLockFSFlag    = 1 << 10
	dmNoFlushFlag       = 1 << 11
	dmSecureDataFlag    = 1 << 15
	dmDeferredFlag      = 1 << 17
	dmUdevFlags         = (dmUdevNoSubsystem | dmUdevNoDisk | dmUdevNoOther | dmUdevPrimary) << 16
	dmUdevNoSubsystem   = 0x02
	dmUdevNoDisk        = 0x04
	dmUdevNoOther       = 0x08
	dmUdevPrimary       = 0x40
	dmMinBuffer         = 16 << 10
	dmMaxBuffer         = 16 << 20
	dmIoctlBase         = 0xc0000000 | dmIoctlSize<<16 | 0xfd<<8
	offDataSize         = 12
	offDataStart        = 16
	offTargetCount      = 20
	offOpenCount        = 24
	offFlags            = 28
	offEventNr          = 32
	offDev              = 40
	offName             = 48
	offUUID             = offName + dmNameLen
	offTargetNext       = 20
	offTargetType       = 24
	dmTargetTypeLen     = 16
	dmNameListNameStart = 12
)

// dmRequest is one call of device-mapper.
type dmRequest struct {
	command    uint
	name, uuid string
	flags      uint32
	// targets is the table to load. Only dmTableLoad uses it.
	targets []dmTarget
	// udev sets flags that make udev ignore the device. The call uses no udev semaphore, so it does
	// not wait for udev.
	udev bool
}

// dmTarget is one line of a table. start and length are in sectors of 512 bytes.
type dmTarget struct {
	start, length uint64
	kind, params  string
}

// dmReply is the kernel's answer. data may hold a table with a key, so the code that reads it wipes
// it.
type dmReply struct {
	open  int
	flags uint32
	dev   uint64
	count int
	uuid  string
	name  string
	data  []byte
}

// call sends the request. It sets the flag that makes the kernel wipe its buffers.
func (q dmRequest) call() (*dmReply, error) {
	f, err := os.OpenFile(dmControl, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: device-mapper: %w; load the module dm_mod", ErrNotSupported,
			err)
	}
	defer f.Close()

	for size := dmMinBuffer; ; {
		b := make([]byte, size)
		if err := q.encode(b); err != nil {
			return nil, err
		}

		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(dmIoctlBase|q.command),
			uintptr(unsafe.Pointer(&b[0])))
		runtime.KeepAlive(b)
		if errno == 0 {
			if r := parseReply(b); r.flags&dmBufferFullFlag == 0 || size >= dmMaxBuffer {
				return r, nil
			}
			size *= 4
		}

		clear(b)
		// Retry after EINTR. Suspending waits for requests, and any signal interrupts the wait
		// (dm_wait_for_completion), including SIGCHLD and signals of the Go runtime. An interrupted
		// call has suspended nothing.
		if errno != 0 && errno != unix.EINTR {
			return nil, q.explain(errno)
		}
	}
}

// explain returns an error for the kernel's errno. Callers can test it for ErrNoMapping and
// ErrExists.
func (q dmRequest) explain(errno unix.Errno) error {
	switch {
	case errno == unix.ENXIO:
		return fmt.Errorf("mapping %s: %w", q.name, ErrNoMapping)
	case errno == unix.EBUSY && q.command == dmDevCreate:
		return fmt.Errorf("mapping %s: %w", q.name, ErrExists)
	}
	return fmt.Errorf("mapping %s: device-mapper command %d: %w", q.name, q.command, errno)
}

func (q dmRequest) encode(b []byte) error {
	if len(q.name) >= dmNameLen || len(q.uuid) >= dmUUIDLen {
		return fmt.Errorf("mapping %q with uuid %q: name or uuid too long", q.name, q.uuid)
	}

	ne := binary.NativeEndian
	ne.PutUint32(b, 4) // Version 4.0.0, which every kernel accepts.
	ne.PutUint32(b[offDataSize:], uint32(len(b)))
	ne.PutUint32(b[offDataStart:], dmIoctlSize)
	ne.PutUint32(b[offTargetCount:], uint32(len(q.targets)))
	ne.PutUint32(b[offFlags:], q.flags|dmSecureDataFlag)
	if q.udev {
		ne.PutUint32(b[offEventNr:], dmUdevFlags)
	}

	copy(b[offName:], q.name)
	copy(b[offUUID:], q.uuid)
	rest := b[dmIoctlSize:]
	for _, t := range q.targets {
		next := (dmTargetSize + len(t.params) + 1 + 7) &^ 7
		if next > len(rest) {
			return fmt.Errorf("mapping %s: table too long", q.name)
		}
		ne.PutUint64(rest, t.start)
		ne.PutUint64(rest[8:], t.length)
		ne.PutUint32(rest[offTargetNext:], uint32(next))
		copy(rest[offTargetType:offTargetType+dmTargetTypeLen-1], t.kind)
		copy(rest[dmTargetSize:], t.params)
		rest = rest[next:]
	}

	return nil
}

func parseReply(b []byte) *dmReply {
	ne := binary.NativeEndian
	r := &dmReply{
		open: int(int32(ne.Uint32(b[offOpenCount:]))), flags: ne.Uint32(b[offFlags:]),
		dev: ne.Uint64(b[offDev:]), count: int(ne.Uint32(b[offTargetCount:])),
		name: cString(b[offName : offName+dmNameLen]),
		uuid: cString(b[offUUID : offUUID+dmUUIDLen]),
	}
	from, to := ne.Uint32(b[offDataStart:]), ne.Uint32(b[offDataSize:])
	if from <= to && int(to) <= len(b) {
		r.data = b[from:to]
	}
	return r
}

// errReply means that the kernel's answer is malformed.
var errReply = errors.New("device-mapper's answer cannot be read")

// targets parses the table in an answer to dmTableStatus, without keys, and wipes the answer.
func (r *dmReply) targets() ([]Target, error) {
	defer clear(r.data)
	ne := binary.NativeEndian
	var out []Target
	for at, i := 0, 0; i < r.count; i++ {
		if at+dmTargetSize > len(r.data) {
			return nil, errReply
		}
		t := r.data[at:]
		kind := cString(t[offTargetType : offTargetType+dmTargetTypeLen])
		// Clone the string, because the buffer is wiped.
		params := redactParams(kind, strings.Clone(cString(t[dmTargetSize:])))
		out = append(out, Target{int64(ne.Uint64(t)) << sectorBits,
			int64(ne.Uint64(t[8:])) << sectorBits, kind, params})
		// In an answer, next is an offset from the first target.
		next := int(ne.Uint32(t[offTargetNext:]))
		if i+1 < r.count && (next <= at || next > len(r.data)) {
			return nil, errReply
		}
		at = next
	}
	return out, nil
}

// names parses an answer to dmListDevices.
func (r *dmReply) names() ([]string, error) {
	ne := binary.NativeEndian
	var out []string
	if len(r.data) == 0 {
		return nil, nil // No devices at all.
	}
	for at := 0; ; {
		if at+dmNameListNameStart > len(r.data) {
			return nil, errReply
		}
		e := r.data[at:]
		out = append(out, strings.Clone(cString(e[dmNameListNameStart:])))
		next := int(ne.Uint32(e[8:]))
		if next == 0 {
			return out, nil
		}
		if next < dmNameListNameStart {
			return nil, errReply
		}
		at += next
	}
}

func cString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
