package noise

import (
	"crypto/rand"
	"encoding/binary"
	"errors"

	"golang.org/x/crypto/blake2s"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
)

// Types of messages, the first byte; three zero bytes follow.
const (
	TypeInitiation = 1
	TypeResponse   = 2
	TypeCookie     = 3
	TypeTransport  = 4
)

// Sizes of messages, bytes.
const (
	InitiationSize = 148
	ResponseSize   = 92
	CookieSize     = 64
)

// Offsets in messages (whitepaper, sections 5.4.2 and 5.4.3).
const (
	senderAt    = 4
	ephemeralAt = 8  // of an initiation
	staticAt    = 40 // 32 + 16 bytes
	timeAt      = 88 // 12 + 16 bytes
	receiverAt  = 8  // of a response
	ephemeral2  = 12 // of a response
	emptyAt     = 44 // 16 bytes
	macsSize    = 32
)

// PublicKey is a Curve25519 point.
type PublicKey [32]byte

// TimestampSize is the size of a TAI64N timestamp, bytes.
const TimestampSize = 12

// Timestamp is a TAI64N label. A later label is greater in the order of its bytes.
type Timestamp [TimestampSize]byte

// Errors of handshakes. Their texts hold no secret.
var (
	ErrForged  = errors.New("message is not authentic")
	ErrNoState = errors.New("no initiation waits for this response")
	ErrBadKey  = errors.New("public key is of small order")
)

// Secrets holds the secrets of a handshake for one peer. It lives in memory of package secret.
type Secrets struct {
	Preshared    [32]byte
	staticStatic [32]byte
	initiation   state
	// Waiting reports whether an initiation waits for its response.
	Waiting bool
	// Usable reports whether staticStatic was computed and is not zero.
	Usable bool
}

// state is the symmetric state of an exchange and this side's ephemeral key.
type state struct{ hash, chain, ephemeral [32]byte }

// Keys are the keys of a session. They live in memory of package secret.
type Keys struct{ Send, Receive aead.Key }

// work is the scratch memory of a handshake, in secret memory. It also holds the static private
// key.
type work struct {
	lad                 ladder
	shared              [32]byte
	prk, key, tau, temp [32]byte
	inner               [64 + 64]byte
	outer               [64 + 32]byte
	response            state
	remoteEphemeral     [32]byte
	private             [32]byte
}

// Identity is this side's static key and the scratch memory of its handshakes.
type Identity struct {
	Public PublicKey
	set    bool
	arena  *secret.Arena
	w      *work
	seal   *aead.Worker
	// Rand fills its argument with a new ephemeral key. A test may replace it.
	Rand func([]byte)
}

var initialChain, initialHash [32]byte

func init() {
	initialChain = blake2s.Sum256([]byte("Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"))
	initialHash = blake2s.Sum256(append(initialChain[:], "WireGuard v1 zx2c4 Jason@zx2c4.com"...))
}

// NewIdentity returns an identity without a key.
func NewIdentity(a *secret.Arena) (*Identity, error) {
	w, err := secret.Alloc[work](a)
	if err != nil {
		return nil, err
	}
	s, err := aead.NewWorker(a)
	if err != nil {
		return nil, err
	}
	return &Identity{arena: a, w: w, seal: s, Rand: func(b []byte) { rand.Read(b) }}, nil
}

// SetPrivate sets the static key and clamps it. The zero key means no key. The caller must then
// call Precompute for every peer.
func (id *Identity) SetPrivate(key *[32]byte) {
	secret.Reserve()
	if *key == [32]byte{} {
		id.w.private, id.Public, id.set = [32]byte{}, PublicKey{}, false
		return
	}
	id.w.private = *key
	id.w.private[0] &= 248
	id.w.private[31] = id.w.private[31]&127 | 64
	id.w.lad.x25519((*[32]byte)(&id.Public), &id.w.private, &basePoint)
	id.set = true
}

// Private returns a pointer to the clamped static key in secret memory. The key is zero if none is
// set.
func (id *Identity) Private() *[32]byte { return &id.w.private }

// Close zeroes the key and the scratch memory. The identity must not be used afterwards.
func (id *Identity) Close() {
	secret.Free(id.arena, id.w)
	id.seal.Close(id.arena)
}

// Precompute computes the shared secret of both static keys, which handshakes with remote need. It
// discards an initiation that waits for its response.
func (id *Identity) Precompute(s *Secrets, remote *PublicKey) {
	secret.Reserve()
	s.initiation, s.Waiting = state{}, false
	defer secret.Scrub()
	s.Usable = id.set && id.w.lad.x25519(&s.staticStatic, &id.w.private, (*[32]byte)(remote))
}

// Initiate writes an initiation without its MACs. It replaces an earlier initiation that waits for
// its response.
func (id *Identity) Initiate(s *Secrets, remote *PublicKey, index uint32, now Timestamp,
	msg *[InitiationSize]byte) error {
	secret.Reserve()
	if !s.Usable {
		return ErrBadKey
	}

	w, st := id.w, &s.initiation
	s.Waiting = false
	*msg = [InitiationSize]byte{TypeInitiation}
	binary.LittleEndian.PutUint32(msg[senderAt:], index)
	st.hash, st.chain = initialHash, initialChain
	w.mixHash(st, remote[:])
	id.Rand(st.ephemeral[:])
	ephemeral := (*[32]byte)(msg[ephemeralAt:])
	w.lad.x25519(ephemeral, &st.ephemeral, &basePoint)
	w.mixKey(st, ephemeral[:], nil)

	w.mixHash(st, ephemeral[:])
	if !w.lad.x25519(&w.shared, &st.ephemeral, (*[32]byte)(remote)) {
		return ErrBadKey
	}

	w.mixKey(st, w.shared[:], &w.key)
	id.seal.SealMessage(&w.key, msg[staticAt:timeAt], id.Public[:], st.hash[:])
	w.mixHash(st, msg[staticAt:timeAt])
	w.mixKey(st, s.staticStatic[:], &w.key)
	sealed := msg[timeAt : InitiationSize-macsSize]
	id.seal.SealMessage(&w.key, sealed, now[:], st.hash[:])
	w.mixHash(st, sealed)
	w.forget()
	s.Waiting = true

	return nil
}

// Open decrypts and returns the static key of an initiation's sender. Call Verify next, because the
// sender has not proven yet that it owns the key.
func (id *Identity) Open(msg *[InitiationSize]byte) (PublicKey, error) {
	secret.Reserve()
	w, st := id.w, &id.w.response
	var remote PublicKey
	if !id.set {
		return remote, ErrBadKey
	}
	st.hash, st.chain = initialHash, initialChain
	w.mixHash(st, id.Public[:])
	w.remoteEphemeral = [32]byte(msg[ephemeralAt:])
	w.mixKey(st, w.remoteEphemeral[:], nil)
	w.mixHash(st, w.remoteEphemeral[:])
	if !w.lad.x25519(&w.shared, &w.private, &w.remoteEphemeral) {
		return remote, ErrBadKey
	}
	w.mixKey(st, w.shared[:], &w.key)
	if !id.seal.OpenMessage(&w.key, remote[:], msg[staticAt:timeAt], st.hash[:]) {
		return PublicKey{}, ErrForged
	}
	w.mixHash(st, msg[staticAt:timeAt])
	return remote, nil
}

// Verify proves that the sender whose key Open returned owns it, and returns the initiation's
// timestamp. s holds the secrets for that peer.
func (id *Identity) Verify(s *Secrets, msg *[InitiationSize]byte) (Timestamp, error) {
	secret.Reserve()
	w, st := id.w, &id.w.response
	var at Timestamp
	if !s.Usable {
		return at, ErrBadKey
	}
	w.mixKey(st, s.staticStatic[:], &w.key)
	sealed := msg[timeAt : InitiationSize-macsSize]
	if !id.seal.OpenMessage(&w.key, at[:], sealed, st.hash[:]) {
		return Timestamp{}, ErrForged
	}
	w.mixHash(st, sealed)
	return at, nil
}

// Respond writes the response, without its MACs, to the initiation that Verify accepted. It also
// sets the keys of the new session.
func (id *Identity) Respond(s *Secrets, remote *PublicKey, initiation *[InitiationSize]byte,
	index uint32, msg *[ResponseSize]byte, keys *Keys) error {
	secret.Reserve()
	w, st := id.w, &id.w.response
	defer w.forget()
	*msg = [ResponseSize]byte{TypeResponse}
	binary.LittleEndian.PutUint32(msg[senderAt:], index)
	copy(msg[receiverAt:], initiation[senderAt:senderAt+4])
	id.Rand(st.ephemeral[:])
	ephemeral := (*[32]byte)(msg[ephemeral2:])
	w.lad.x25519(ephemeral, &st.ephemeral, &basePoint)
	w.mixHash(st, ephemeral[:])
	w.mixKey(st, ephemeral[:], nil)
	if !w.lad.x25519(&w.shared, &st.ephemeral, &w.remoteEphemeral) {
		return ErrBadKey
	}
	w.mixKey(st, w.shared[:], nil)
	if !w.lad.x25519(&w.shared, &st.ephemeral, (*[32]byte)(remote)) {
		return ErrBadKey
	}
	w.mixKey(st, w.shared[:], nil)
	w.mixPreshared(st, &s.Preshared)
	id.seal.SealMessage(&w.key, msg[emptyAt:emptyAt+aead.Overhead], nil, st.hash[:])
	w.kdf(&keys.Receive, &keys.Send, nil, &st.chain, nil)
	return nil
}

// Finish accepts the response to the initiation that waits in s, and sets the keys of the new
// session. A response with an error leaves s unchanged.
func (id *Identity) Finish(s *Secrets, msg *[ResponseSize]byte, keys *Keys) error {
	secret.Reserve()
	if !s.Waiting {
		return ErrNoState
	}
	w, st := id.w, &id.w.response
	defer w.forget()
	*st = s.initiation
	ephemeral := (*[32]byte)(msg[ephemeral2:])
	w.mixHash(st, ephemeral[:])
	w.mixKey(st, ephemeral[:], nil)
	if !w.lad.x25519(&w.shared, &st.ephemeral, ephemeral) {
		return ErrBadKey
	}
	w.mixKey(st, w.shared[:], nil)
	if !w.lad.x25519(&w.shared, &w.private, ephemeral) {
		return ErrBadKey
	}
	w.mixKey(st, w.shared[:], nil)
	w.mixPreshared(st, &s.Preshared)
	if !id.seal.OpenMessage(&w.key, w.temp[:], msg[emptyAt:emptyAt+aead.Overhead], st.hash[:]) {
		return ErrForged
	}
	w.kdf(&keys.Send, &keys.Receive, nil, &st.chain, nil)
	s.initiation, s.Waiting = state{}, false
	return nil
}

// Forget discards and zeroes an initiation that waits for its response.
func (s *Secrets) Forget() { s.initiation, s.Waiting = state{}, false }

// Sender returns the session index that the sender of a handshake message chose.
func Sender(msg []byte) uint32 { return binary.LittleEndian.Uint32(msg[senderAt:]) }

// ResponseReceiver returns the session index of the initiation to which a response belongs.
func ResponseReceiver(msg *[ResponseSize]byte) uint32 {
	return binary.LittleEndian.Uint32(msg[receiverAt:])
}

// CookieReceiver returns the session index of the message to which a cookie reply belongs.
func CookieReceiver(msg *[CookieSize]byte) uint32 { return binary.LittleEndian.Uint32(msg[4:]) }

// forget zeroes the scratch memory except the static key, and the part of the stack that may hold
// copies of secrets.
func (w *work) forget() {
	w.lad, w.response = ladder{}, state{}
	for _, b := range []*[32]byte{&w.shared, &w.prk, &w.key, &w.tau, &w.temp, &w.remoteEphemeral} {
		clear(b[:])
	}
	clear(w.inner[:])
	clear(w.outer[:])
	secret.Scrub()
}

func (w *work) mixHash(st *state, data []byte) {
	n := copy(w.inner[:], st.hash[:])
	n += copy(w.inner[n:], data)
	st.hash = blake2s.Sum256(w.inner[:n])
}

// mixKey mixes input into the chaining key and, if key is not nil, derives a key.
func (w *work) mixKey(st *state, input []byte, key *[32]byte) {
	w.kdf(&st.chain, key, nil, &st.chain, input)
}

func (w *work) mixPreshared(st *state, psk *[32]byte) {
	w.kdf(&st.chain, &w.tau, &w.key, &st.chain, psk[:])
	w.mixHash(st, w.tau[:])
}

// kdf is HKDF with HMAC-BLAKE2s (RFC 5869). It derives one to three outputs; nil ends the list.
// input has at most 32 bytes.
func (w *work) kdf(out1, out2, out3, chain *[32]byte, input []byte) {
	w.hmac(&w.prk, chain, input)
	w.hmac(out1, &w.prk, []byte{1})
	if out2 == nil {
		return
	}
	var next [33]byte
	copy(next[:], out1[:])
	next[32] = 2
	w.hmac(out2, &w.prk, next[:])
	if out3 == nil {
		next = [33]byte{}
		return
	}
	copy(next[:], out2[:])
	next[32] = 3
	w.hmac(out3, &w.prk, next[:])
	next = [33]byte{}
}

// hmac is HMAC-BLAKE2s (RFC 2104, block size 64) with a key of 32 bytes and at most 64 bytes of
// input.
func (w *work) hmac(out, key *[32]byte, input []byte) {
	for i := range 64 {
		w.inner[i], w.outer[i] = 0x36, 0x5c
	}
	for i, b := range key {
		w.inner[i] ^= b
		w.outer[i] ^= b
	}
	n := 64 + copy(w.inner[64:], input)
	sum := blake2s.Sum256(w.inner[:n])
	copy(w.outer[64:], sum[:])
	*out = blake2s.Sum256(w.outer[:])
}
