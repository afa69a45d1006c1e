package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// ErrMalformed is the error of an image that cannot be read.
var ErrMalformed = errors.New("the state of the device is malformed")

// codec counts, writes or reads the bytes of an image. All three use the same visit functions, so
// the layout is defined once. Numbers have the machine's byte order, because both processes run on
// the same machine.
type codec struct {
	way way
	b   []byte
	n   int
	err error // the first error
	// served reports whether the threads run while the image is written.
	served bool
}

type way int

const (
	counting way = iota
	writing
	reading
)

// fail records that the image is malformed.
func (c *codec) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s at byte %d", ErrMalformed, what, c.n)
	}
}

// place returns the next n bytes of the image. It returns nil while counting, after an error, and
// if the image is too short.
func (c *codec) place(n int) []byte {
	if c.way == counting {
		c.n += n
		return nil
	}
	if c.err != nil || n < 0 || n > len(c.b)-c.n {
		c.fail("the image is too short")
		return nil
	}
	p := c.b[c.n : c.n+n]
	c.n += n
	return p
}

// Raw copies b to the image, or the next len(b) bytes of the image to b while reading.
func (c *codec) Raw(b []byte) {
	p := c.place(len(b))
	if c.way == reading {
		copy(b, p)
	} else {
		copy(p, b)
	}
}

// take returns the next n bytes of the image while reading, or nil if the image is too short.
func (c *codec) take(n int) []byte { return c.place(n) }

func (c *codec) u64(v *uint64) {
	p := c.place(8)
	switch {
	case p == nil:
	case c.way == reading:
		*v = binary.NativeEndian.Uint64(p)
	default:
		binary.NativeEndian.PutUint64(p, *v)
	}
}

// words visits a slice of numbers, which must not be empty.
func (c *codec) words(w []uint64) {
	c.Raw(unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), 8*len(w)))
}

// number visits an integer. While reading, a value outside of least to most makes the image
// malformed.
func number[T ~int | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32](c *codec, v *T, least, most T) {
	x := uint64(*v)
	c.u64(&x)
	if c.way != reading {
		return
	}
	if y := T(x); y < least || y > most || uint64(y) != x {
		c.fail("a number is out of range")
		return
	}
	*v = T(x)
}

// Flag visits a bool.
func (c *codec) Flag(v *bool) {
	x := uint8(0)
	if *v {
		x = 1
	}
	p := c.place(1)
	switch {
	case p == nil:
	case c.way == writing:
		p[0] = x
	case p[0] > 1:
		c.fail("a flag is neither 0 nor 1")
	default:
		*v = p[0] == 1
	}
}

// Duration visits a time since boot, or a duration.
func (c *codec) Duration(v *time.Duration) {
	number(c, v, 0, 1<<62)
}

// count visits the length of a list and returns it. Each element has at least size bytes. So a
// malformed length cannot make the reader allocate more memory than the image has bytes.
func (c *codec) count(n, size int) int {
	number(c, &n, 0, 1<<30)
	if c.way != reading {
		return n
	}
	if c.err == nil && n > (len(c.b)-c.n)/size {
		c.fail("a list is longer than the image")
	}
	if c.err != nil {
		return 0
	}
	return n
}

// addr visits an address without a zone. An invalid address means that there is none.
func (c *codec) addr(a *netip.Addr) {
	var family uint8
	switch {
	case a.Is4():
		family = 4
	case a.IsValid():
		family = 6
	}

	p := c.place(1 + 16)
	switch {
	case p == nil:
	case c.way == writing:
		wide := a.As16()
		p[0] = family
		if family != 0 {
			copy(p[1:], wide[:])
		}
	case p[0] == 0:
		*a = netip.Addr{}
	case p[0] == 4:
		*a = netip.AddrFrom16([16]byte(p[1:])).Unmap()
		if !a.Is4() {
			c.fail("an IPv4 address is invalid")
		}
	case p[0] == 6 && !netip.AddrFrom16([16]byte(p[1:])).Is4In6():
		*a = netip.AddrFrom16([16]byte(p[1:]))
	default:
		c.fail("an address has an unknown family")
	}
}

func (c *codec) addrPort(a *netip.AddrPort) {
	addr, port := a.Addr(), a.Port()
	c.addr(&addr)
	number(c, &port, 0, 1<<16-1)
	if c.way == reading {
		*a = netip.AddrPortFrom(addr, port)
	}
}

func (c *codec) endpoint(e *sock.Endpoint) {
	c.addrPort(&e.Addr)
	number(c, &e.Scope, 0, 1<<32-1)
	c.addr(&e.Source)
	number(c, &e.Interface, 0, 1<<31-1)
	if c.way == reading && !e.Addr.Addr().IsValid() {
		c.fail("an endpoint has no address")
	}
}
