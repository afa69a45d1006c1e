package noise

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"hash"
	"net/netip"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
)

// CookieLifetime is how long a secret is used, and a cookie that was made with it accepted.
const CookieLifetime = 120 * time.Second

// cookieUse is how long a cookie is used: its maker's secret is older than the cookie is here by the
// time it took to come (drivers/net/wireguard/messages.h, COOKIE_SECRET_LATENCY).
const cookieUse = CookieLifetime - 5*time.Second

const macSize = blake2s.Size128

// macKeys are the keys for MAC1 and for cookies that follow from a public key.
type macKeys struct{ mac1, cookie [32]byte }

func keysOf(public *PublicKey) macKeys {
	return macKeys{
		mac1:   blake2s.Sum256(append([]byte("mac1----"), public[:]...)),
		cookie: blake2s.Sum256(append([]byte("cookie--"), public[:]...)),
	}
}

func mac(key []byte, parts ...[]byte) (out [macSize]byte) {
	h, err := blake2s.New128(key)
	if err != nil {
		panic(err) // A key is at most 32 bytes long.
	}
	for _, p := range parts {
		h.Write(p)
	}
	h.Sum(out[:0])
	return out
}

// Filter checks the first MAC of handshake messages, and allocates nothing. It is not safe for
// concurrent use.
type Filter struct {
	h   hash.Hash
	sum [macSize]byte
}

// NewFilter returns the filter for messages to the owner of public.
func NewFilter(public PublicKey) *Filter {
	keys := keysOf(&public)
	h, err := blake2s.New128(keys.mac1[:])
	if err != nil {
		panic(err) // The key has 32 bytes.
	}
	return &Filter{h: h}
}

// Passes reports whether the first MAC of a handshake message is right: its sender has our public
// key.
func (f *Filter) Passes(msg []byte) bool {
	at := len(msg) - 2*macSize
	f.h.Reset()
	f.h.Write(msg[:at])
	return subtle.ConstantTimeCompare(f.h.Sum(f.sum[:0]), msg[at:at+macSize]) == 1
}

// Checker checks the second MAC of messages to this side and makes cookies under load. Times are of
// any steady clock.
type Checker struct {
	keys   macKeys
	secret [32]byte
	made   time.Duration
	valid  bool
}

// NewChecker returns the checker for messages to the owner of public.
func NewChecker(public PublicKey) *Checker { return &Checker{keys: keysOf(&public)} }

// MAC2 reports whether the second MAC was made with the cookie that the owner of from received.
func (c *Checker) MAC2(msg []byte, from netip.AddrPort, now time.Duration) bool {
	if !c.valid || now-c.made >= CookieLifetime {
		return false
	}
	cookie := c.cookie(from)
	at := len(msg) - macSize
	want := mac(cookie[:], msg[:at])
	return subtle.ConstantTimeCompare(want[:], msg[at:]) == 1
}

// cookie ties address and port of a sender to the secret.
func (c *Checker) cookie(from netip.AddrPort) [macSize]byte {
	addr := from.Addr().As16()
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], from.Port())
	return mac(c.secret[:], addr[:], port[:])
}

// Reply answers a handshake message with a cookie for its sender.
func (c *Checker) Reply(msg []byte, from netip.AddrPort, now time.Duration) [CookieSize]byte {
	if !c.valid || now-c.made >= CookieLifetime {
		rand.Read(c.secret[:])
		c.made, c.valid = now, true
	}
	out := [CookieSize]byte{TypeCookie}
	copy(out[4:8], msg[senderAt:senderAt+4])
	nonce := out[8 : 8+chacha20poly1305.NonceSizeX]
	rand.Read(nonce)
	box, err := chacha20poly1305.NewX(c.keys.cookie[:])
	if err != nil {
		panic(err) // The key has 32 bytes.
	}
	cookie := c.cookie(from)
	at := len(msg) - 2*macSize
	box.Seal(out[32:32], nonce, cookie[:], msg[at:at+macSize])
	return out
}

// Stamper adds the MACs to messages for one peer and keeps the peer's cookie.
type Stamper struct {
	keys    macKeys
	last    [macSize]byte
	sent    bool
	cookie  [macSize]byte
	got     time.Duration
	present bool
}

// NewStamper returns the stamper for messages to the owner of public.
func NewStamper(public PublicKey) *Stamper { return &Stamper{keys: keysOf(&public)} }

// Stamp writes MAC1 and, while a cookie is valid, MAC2 into a handshake message.
func (s *Stamper) Stamp(msg []byte, now time.Duration) {
	at := len(msg) - 2*macSize
	s.last = mac(s.keys.mac1[:], msg[:at])
	s.sent = true
	copy(msg[at:], s.last[:])
	clear(msg[at+macSize:])
	if !s.present || now-s.got >= cookieUse {
		return
	}
	second := mac(s.cookie[:], msg[:at+macSize])
	copy(msg[at+macSize:], second[:])
}

// Take accepts a cookie reply to the last message that Stamp stamped, and reports whether it was
// valid.
func (s *Stamper) Take(msg *[CookieSize]byte, now time.Duration) bool {
	if !s.sent {
		return false
	}
	box, err := chacha20poly1305.NewX(s.keys.cookie[:])
	if err != nil {
		panic(err) // The key has 32 bytes.
	}
	var cookie [macSize]byte
	if _, err := box.Open(cookie[:0], msg[8:32], msg[32:], s.last[:]); err != nil {
		return false
	}
	s.cookie, s.got, s.present = cookie, now, true
	// One reply a message: a repeated one does not make the cookie younger.
	s.sent = false
	return true
}
