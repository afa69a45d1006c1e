package uapi

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Key is a private, public or preshared key.
type Key = [32]byte

// Set is a parsed "set". Nil fields are not changed by the request.
type Set struct {
	PrivateKey   *Key
	ListenPort   *uint16
	Mark         *uint32
	ReplacePeers bool
	// Peers are in the order of the text. A peer may occur more than once.
	Peers []Peer
}

// Peer holds the settings of a peer in a Set.
type Peer struct {
	Public     Key
	UpdateOnly bool
	Remove     bool
	Preshared  *Key
	Endpoint   *Endpoint
	Keepalive  *time.Duration
	// Allowed are changes of allowed IPs in the order of the text.
	Allowed []Allowed
}

// Endpoint is the address of a peer. Scope is the interface index of a link-local address,
// otherwise 0.
type Endpoint struct {
	Addr  netip.AddrPort
	Scope uint32
}

// Allowed is one change of allowed IPs.
type Allowed struct {
	// Clear removes all allowed IPs of the peer. Then Prefix is not used.
	Clear bool
	// Remove removes Prefix instead of adding it.
	Remove bool
	// Prefix is masked.
	Prefix netip.Prefix
}

// Error is an error with its errno in the protocol.
type Error struct {
	Code int64
	Err  error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrorCode returns the errno of the answer, a negative number.
func (e *Error) ErrorCode() int64 { return e.Code }

func invalid(key string, err error) error {
	return &Error{-int64(unix.EINVAL), fmt.Errorf("set %s: %w", key, err)}
}

// plain is an error whose text contains no part of a value.
type plain string

func (p plain) Error() string { return string(p) }

// Parse reads a "set" up to an empty line or the end of r.
func Parse(r io.Reader) (*Set, error) {
	s := &Set{}
	in := bufio.NewScanner(r)
	for in.Scan() {
		line := in.Text()
		if line == "" {
			break
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, &Error{-int64(unix.EPROTO), plain("parse line: no equals sign")}
		}

		var err error
		switch {
		case key == "public_key":
			var k Key
			err = parseKey(&k, value)
			s.Peers = append(s.Peers, Peer{Public: k})
		case len(s.Peers) == 0:
			err = s.device(key, value)
		default:
			err = s.Peers[len(s.Peers)-1].line(key, value)
		}

		if err != nil {
			return nil, invalid(clean(key), err)
		}
	}

	if err := in.Err(); err != nil {
		return nil, &Error{-int64(unix.EIO), fmt.Errorf("read set: %w", err)}
	}
	return s, nil
}

// clean returns key, or "unknown key" if key does not look like a key of the protocol. Such a text
// may be a secret in the wrong place, and must not get into an error.
func clean(key string) string {
	if len(key) > 30 || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return "unknown key"
	}
	return key
}

func (s *Set) device(key, value string) error {
	switch key {
	case "private_key":
		s.PrivateKey = new(Key)
		return parseKey(s.PrivateKey, value)
	case "listen_port":
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return plain("want a number of 16 bits")
		}
		port := uint16(n)
		s.ListenPort = &port
	case "fwmark":
		n, err := strconv.ParseUint(value, 0, 32)
		if err != nil {
			return plain("want a number of 32 bits")
		}
		mark := uint32(n)
		s.Mark = &mark
	case "replace_peers":
		s.ReplacePeers = true
		return want(value, "true")
	default:
		return plain("not a key of a device")
	}
	return nil
}

func want(value, only string) error {
	if value != only {
		return plain("want " + only)
	}
	return nil
}

func (p *Peer) line(key, value string) error {
	switch key {
	case "update_only":
		p.UpdateOnly = true
		return want(value, "true")
	case "remove":
		p.Remove = true
		return want(value, "true")
	case "preshared_key":
		p.Preshared = new(Key)
		return parseKey(p.Preshared, value)
	case "endpoint":
		ep, err := parseEndpoint(value)
		p.Endpoint = ep
		return err
	case "persistent_keepalive_interval":
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return plain("want a number of 16 bits")
		}
		d := time.Duration(n) * time.Second
		p.Keepalive = &d
	case "replace_allowed_ips":
		p.Allowed = append(p.Allowed, Allowed{Clear: true})
		return want(value, "true")
	case "allowed_ip":
		text, remove := strings.CutPrefix(value, "-")
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return plain("want an address and a prefix length")
		}
		p.Allowed = append(p.Allowed, Allowed{Remove: remove, Prefix: plainPrefix(prefix)})
	case "protocol_version":
		return want(value, "1")
	default:
		return plain("not a key of a peer")
	}

	return nil
}

// plainPrefix returns the masked prefix, with an IPv4-mapped IPv6 prefix converted to IPv4.
func plainPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

func parseKey(k *Key, text string) error {
	if len(text) != 2*len(k) {
		return plain("want 64 hexadecimal digits")
	}
	if _, err := hex.Decode(k[:], []byte(text)); err != nil {
		return plain("want 64 hexadecimal digits")
	}
	return nil
}

func parseEndpoint(text string) (*Endpoint, error) {
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil, plain("want an address and a port")
	}
	e := &Endpoint{Addr: netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())}
	zone := a.Addr().Zone()
	if zone == "" {
		return e, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		e.Scope = uint32(n)
		return e, nil
	}
	link, err := net.InterfaceByName(zone)
	if err != nil {
		return nil, plain("the interface of the address does not exist")
	}
	e.Scope = uint32(link.Index)
	return e, nil
}

// DeviceState is the answer of a "get".
type DeviceState struct {
	PrivateKey Key
	ListenPort uint16
	Mark       uint32
	Peers      []PeerState
}

// PeerState is the state of a peer in the answer of a "get".
type PeerState struct {
	Public, Preshared Key
	// Endpoint has an invalid Addr if the peer has no endpoint.
	Endpoint      Endpoint
	LastHandshake time.Time // zero means never
	Sent          uint64
	Received      uint64
	Keepalive     time.Duration
	Allowed       []netip.Prefix
}

// Write writes the answer to a "get", without the line errno.
func (s *DeviceState) Write(w io.Writer) error {
	b := make([]byte, 0, 256+512*len(s.Peers))
	line := func(format string, args ...any) { b = append(fmt.Appendf(b, format, args...), '\n') }
	if s.PrivateKey != (Key{}) {
		line("private_key=%x", s.PrivateKey[:])
	}
	if s.ListenPort != 0 {
		line("listen_port=%d", s.ListenPort)
	}
	if s.Mark != 0 {
		line("fwmark=%d", s.Mark)
	}

	for i := range s.Peers {
		p := &s.Peers[i]
		line("public_key=%x", p.Public[:])
		line("preshared_key=%x", p.Preshared[:])
		line("protocol_version=1")
		if p.Endpoint.Addr.IsValid() {
			line("endpoint=%s", p.Endpoint)
		}
		var sec, nsec int64
		if !p.LastHandshake.IsZero() {
			sec, nsec = p.LastHandshake.Unix(), int64(p.LastHandshake.Nanosecond())
		}

		line("last_handshake_time_sec=%d", sec)
		line("last_handshake_time_nsec=%d", nsec)
		line("tx_bytes=%d", p.Sent)
		line("rx_bytes=%d", p.Received)
		line("persistent_keepalive_interval=%d", int(p.Keepalive/time.Second))

		for _, a := range p.Allowed {
			line("allowed_ip=%s", a)
		}
	}

	_, err := w.Write(b)
	clear(b)
	if err != nil {
		return &Error{-int64(unix.EIO), fmt.Errorf("write answer: %w", err)}
	}

	return nil
}

// String returns the endpoint as the protocol writes it.
func (e Endpoint) String() string {
	if e.Scope == 0 {
		return e.Addr.String()
	}
	a := e.Addr.Addr().WithZone(strconv.Itoa(int(e.Scope)))
	return netip.AddrPortFrom(a, e.Addr.Port()).String()
}
