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

// CookieLifetime is the time for which a Checker uses a secret and accepts the cookies made with
// it.
const CookieLifetime = 120 * time.Second

// cookieUse is the time for which a Stamper uses a cookie. It is shorter than CookieLifetime,
// because the cookie has been under way since the peer made it (drivers/net/wireguard/messages.h,
// COOKIE_SECRET_LATENCY).
const cookieUse = CookieLifetime - 5*time.Second

const macSize = blake2s.Size128

// macKeys are the keys for MAC1 and for cookies, which are derived from a public key.
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

// Filter checks MAC1 of handshake messages without allocating. It is not safe for concurrent use.
type Filter struct {
	h   hash.Hash
	sum [macSize]byte
}

// NewFilter returns the filter for messages that are sent to the owner of public.
func NewFilter(public PublicKey) *Filter {
	keys := keysOf(&public)
	h, err := blake2s.New128(keys.mac1[:])
	if err != nil {
		panic(err) // The key has 32 bytes.
	}
	return &Filter{h: h}
}

// Passes reports whether MAC1 of a handshake message is right, which proves that its sender knows
// the owner's public key.
func (f *Filter) Passes(msg []byte) bool {
	at := len(msg) - 2*macSize
	f.h.Reset()
	f.h.Write(msg[:at])
	return subtle.ConstantTimeCompare(f.h.Sum(f.sum[:0]), msg[at:at+macSize]) == 1
}

// Checker makes cookies for the senders of messages, and checks MAC2, which is made with a cookie.
// Times can be of any monotonic clock.
type Checker struct {
	keys   macKeys
	secret [32]byte
	made   time.Duration
	valid  bool
}

// NewChecker returns the checker for messages that are sent to the owner of public.
func NewChecker(public PublicKey) *Checker { return &Checker{keys: keysOf(&public)} }

// MAC2 reports whether MAC2 of msg was made with the valid cookie of the address from.
func (c *Checker) MAC2(msg []byte, from netip.AddrPort, now time.Duration) bool {
	if !c.valid || now-c.made >= CookieLifetime {
		return false
	}
	cookie := c.cookie(from)
	at := len(msg) - macSize
	want := mac(cookie[:], msg[:at])
	return subtle.ConstantTimeCompare(want[:], msg[at:]) == 1
}

// cookie returns the cookie of a sender: a MAC of its address and port under the secret.
func (c *Checker) cookie(from netip.AddrPort) [macSize]byte {
	addr := from.Addr().As16()
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], from.Port())
	return mac(c.secret[:], addr[:], port[:])
}

// Reply returns the cookie reply to a handshake message, which holds the cookie of its sender.
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

// NewStamper returns the stamper for messages that are sent to the owner of public.
func NewStamper(public PublicKey) *Stamper { return &Stamper{keys: keysOf(&public)} }

// Stamp writes MAC1 into a handshake message and, if there is a valid cookie, MAC2.
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
	// Accept one reply per message, so that a replayed reply does not renew an old cookie.
	s.sent = false
	return true
}
