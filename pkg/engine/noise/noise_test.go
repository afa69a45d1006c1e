package noise

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/crypto/curve25519"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/secret"
)

func unhex(t testing.TB, s string) (out [32]byte) {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 32 {
		t.Fatal(s, err)
	}
	return [32]byte(b)
}

func TestX25519Vectors(t *testing.T) {
	for _, tc := range []struct{ name, scalar, point, want string }{
		{"RFC 7748, section 5.2, first",
			"a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
			"e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
			"c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"},
		{"RFC 7748, section 5.2, second",
			"4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
			"e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
			"95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957"},
		{"RFC 7748, section 6.1, Alice",
			"77076d0a7318a57d3c16c17251b26645df2fb3c2b9cdaabf8d9a5d9d7ef2e0a1"[:62] + "2a",
			"0900000000000000000000000000000000000000000000000000000000000000", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var l ladder
			var out [32]byte
			scalar, point := unhex(t, tc.scalar), unhex(t, tc.point)
			l.x25519(&out, &scalar, &point)
			want, err := curve25519.X25519(scalar[:], point[:])
			if err != nil || !bytes.Equal(out[:], want) {
				t.Fatalf("%x, want %x", out, want)
			}
			if tc.want != "" && out != unhex(t, tc.want) {
				t.Errorf("%x, want %s", out, tc.want)
			}
			if l != (ladder{}) {
				t.Error("the scratch is not zeroed")
			}
		})
	}
}

func TestX25519AgreesWithCryptoECDH(t *testing.T) {
	var l ladder
	for range 300 {
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		errtest.Must(t, err)
		other, err := ecdh.X25519().GenerateKey(rand.Reader)
		errtest.Must(t, err)
		want, err := key.ECDH(other.PublicKey())
		errtest.Must(t, err)
		var out [32]byte
		scalar, point := [32]byte(key.Bytes()), [32]byte(other.PublicKey().Bytes())
		if !l.x25519(&out, &scalar, &point) || !bytes.Equal(out[:], want) {
			t.Fatalf("%x, want %x", out, want)
		}
	}
}

// Edge cases as Wycheproof has them: points of small order, points that are not reduced, the twist.
func TestX25519EdgeCases(t *testing.T) {
	points := []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
		"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
		"daffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
		"efffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"0200000000000000000000000000000000000000000000000000000000000080",
	}

	for i, p := range points {
		point := unhex(t, p)
		for range 20 {
			var scalar, out [32]byte
			rand.Read(scalar[:])
			var l ladder
			ok := l.x25519(&out, &scalar, &point)
			want, err := curve25519.X25519(scalar[:], point[:])
			if ok != (err == nil) || err == nil && !bytes.Equal(out[:], want) {
				t.Fatalf("point %d: %x %v, want %x %v", i, out, ok, want, err)
			}
		}
	}
}

func TestKDFVectors(t *testing.T) {
	var w work
	for _, tc := range []struct{ name, key, input, t1, t2, t3 string }{
		{"wireguard-go, kdf_test.go, first", "746573742d6b6579", "746573742d696e707574",
			"6f0e5ad38daba1bea8a0d213688736f19763239305e0f58aba697f9ffc41c633",
			"df1194df20802a4fe594cde27e92991c8cae66c366e8106aaa937a55fa371e8a",
			"fac6e2745a325f5dc5d11a5b165aad08b0ada28e7b4e666b7c077934a4d76c24"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k, _ := hex.DecodeString(tc.key)
			in, _ := hex.DecodeString(tc.input)
			// HMAC pads a short key with zeros.
			var key, a, b, c [32]byte
			copy(key[:], k)
			w.kdf(&a, &b, &c, &key, in)
			if a != unhex(t, tc.t1) || b != unhex(t, tc.t2) || c != unhex(t, tc.t3) {
				t.Errorf("%x %x %x", a, b, c)
			}
		})
	}
}

// side is one end of a handshake.
type side struct {
	id   *Identity
	peer *Secrets
	keys *Keys
}

func pair(t testing.TB) (a, b *side) {
	t.Helper()
	arena := new(secret.Arena)
	t.Cleanup(func() { arena.Close() })
	make := func() *side {
		id, err := NewIdentity(arena)
		errtest.Must(t, err)
		var key [32]byte
		rand.Read(key[:])
		id.SetPrivate(&key)
		s, err := secret.Alloc[Secrets](arena)
		errtest.Must(t, err)
		k, err := secret.Alloc[Keys](arena)
		errtest.Must(t, err)
		return &side{id, s, k}
	}
	a, b = make(), make()
	a.id.Precompute(a.peer, &b.id.Public)
	b.id.Precompute(b.peer, &a.id.Public)
	return a, b
}

func (b *side) answer(remote *PublicKey, init *[InitiationSize]byte,
	out *[ResponseSize]byte) error {
	key, err := b.id.Open(init)
	if err != nil {
		return err
	}
	if key != *remote {
		return ErrForged
	}
	if _, err := b.id.Verify(b.peer, init); err != nil {
		return err
	}
	return b.id.Respond(b.peer, &key, init, 2, out, b.keys)
}

func TestHandshakeAgreesOnKeys(t *testing.T) {
	for _, psk := range []bool{false, true} {
		a, b := pair(t)
		if psk {
			rand.Read(a.peer.Preshared[:])
			b.peer.Preshared = a.peer.Preshared
		}

		var init [InitiationSize]byte
		var resp [ResponseSize]byte
		now := Stamp(time.Unix(1, 0), Timestamp{})
		errtest.Must(t, a.id.Initiate(a.peer, &b.id.Public, 1, now, &init))
		errtest.Must(t, b.answer(&a.id.Public, &init, &resp))
		errtest.Must(t, a.id.Finish(a.peer, &resp, a.keys))

		if a.keys.Send != b.keys.Receive || a.keys.Receive != b.keys.Send ||
			a.keys.Send == a.keys.Receive {
			t.Error("the keys do not match")
		}

		if a.peer.initiation != (state{}) || b.id.w.response != (state{}) {
			t.Error("ephemeral state was kept")
		}
		if err := a.id.Finish(a.peer, &resp, a.keys); !errors.Is(err, ErrNoState) {
			t.Errorf("a repeated response: %v, want %v", err, ErrNoState)
		}
	}
}

func TestOtherPresharedKeyIsRefused(t *testing.T) {
	a, b := pair(t)
	a.peer.Preshared[3] = 1
	var init [InitiationSize]byte
	var resp [ResponseSize]byte
	errtest.Must(t, a.id.Initiate(a.peer, &b.id.Public, 1, Timestamp{1}, &init))
	errtest.Must(t, b.answer(&a.id.Public, &init, &resp))
	if err := a.id.Finish(a.peer, &resp, a.keys); !errors.Is(err, ErrForged) {
		t.Errorf("finish: %v, want %v", err, ErrForged)
	}
	// The changed key is used by the exchange that waits: a right response comes after all.
	b.peer.Preshared[3] = 1
	errtest.Must(t, b.answer(&a.id.Public, &init, &resp))
	if err := a.id.Finish(a.peer, &resp, a.keys); err != nil {
		t.Errorf("finish after the key was changed: %v", err)
	}
}

func TestOneFlippedBitIsRefusedAndChangesNothing(t *testing.T) {
	a, b := pair(t)
	var init [InitiationSize]byte
	var resp [ResponseSize]byte
	errtest.Must(t, a.id.Initiate(a.peer, &b.id.Public, 1, Timestamp{1}, &init))

	// The sender's index of an initiation, bytes 4 to 7, is protected by MAC1 alone.
	for bit := 8 * ephemeralAt; bit < 8*(InitiationSize-macsSize); bit += 7 {
		bad := init
		bad[bit/8] ^= 1 << (bit % 8)
		if bit/8 == ephemeralAt+31 && bit%8 == 7 {
			continue // The top bit of a point is not used, but it is hashed.
		}
		var out [ResponseSize]byte
		if b.answer(&a.id.Public, &bad, &out) == nil {
			t.Fatalf("initiation with bit %d flipped was accepted", bit)
		}
	}

	errtest.Must(t, b.answer(&a.id.Public, &init, &resp))

	for bit := 8 * ephemeral2; bit < 8*(ResponseSize-macsSize); bit += 5 {
		bad := resp
		bad[bit/8] ^= 1 << (bit % 8)
		if a.id.Finish(a.peer, &bad, a.keys) == nil {
			t.Fatalf("response with bit %d flipped was accepted", bit)
		}
	}

	if err := a.id.Finish(a.peer, &resp, a.keys); err != nil {
		t.Errorf("the right response after the forged ones: %v", err)
	}
}

func TestBothSidesMayBeginAtOnce(t *testing.T) {
	a, b := pair(t)
	var fromA, fromB [InitiationSize]byte
	var toA, toB [ResponseSize]byte
	errtest.Must(t, a.id.Initiate(a.peer, &b.id.Public, 1, Timestamp{1}, &fromA))
	errtest.Must(t, b.id.Initiate(b.peer, &a.id.Public, 1, Timestamp{1}, &fromB))
	errtest.Must(t, b.answer(&a.id.Public, &fromA, &toA))
	errtest.Must(t, a.answer(&b.id.Public, &fromB, &toB))
	errtest.Check(t, a.id.Finish(a.peer, &toA, a.keys))
	errtest.Check(t, b.id.Finish(b.peer, &toB, b.keys))
}

func TestCookieIsForAddressAndPort(t *testing.T) {
	a, b := pair(t)
	check, stamp := NewChecker(b.id.Public), NewStamper(b.id.Public)
	var init [InitiationSize]byte
	errtest.Must(t, a.id.Initiate(a.peer, &b.id.Public, 1, Timestamp{1}, &init))

	from := netip.MustParseAddrPort("198.18.0.1:4000")
	stamp.Stamp(init[:], 0)
	if !NewFilter(b.id.Public).Passes(init[:]) || check.MAC2(init[:], from, 0) {
		t.Fatal("a first message: MAC1 must be right and MAC2 wrong")
	}

	reply := check.Reply(init[:], from, 0)
	forged := reply
	forged[40] ^= 1
	if stamp.Take(&forged, 0) {
		t.Error("a forged cookie was taken")
	}
	if !stamp.Take(&reply, 0) {
		t.Fatal("the cookie was not taken")
	}

	stamp.Stamp(init[:], time.Second)
	for _, tc := range []struct {
		name string
		from string
		now  time.Duration
		want bool
	}{
		{"the same sender", "198.18.0.1:4000", time.Second, true},
		{"another port", "198.18.0.1:4001", time.Second, false},
		{"another address", "198.18.0.2:4000", time.Second, false},
		{"two minutes later", "198.18.0.1:4000", CookieLifetime, false},
	} {
		if got := check.MAC2(init[:], netip.MustParseAddrPort(tc.from), tc.now); got != tc.want {
			t.Errorf("%s: MAC2 is right: %v, want %v", tc.name, got, tc.want)
		}
	}

	// 5 s before the secret changes, for the time that cookie and message take.
	for now, used := range map[time.Duration]bool{CookieLifetime - 5*time.Second - 1: true,
		CookieLifetime - 5*time.Second: false, CookieLifetime: false} {
		stamp.Stamp(init[:], now)
		if got := [macSize]byte(init[InitiationSize-macSize:]) != [macSize]byte{}; got != used {
			t.Errorf("a cookie of %s was used: %v, want %v", now, got, used)
		}
	}
}

func TestTimestampGrowsThoughTheClockStepsBack(t *testing.T) {
	last := Timestamp{}
	for _, at := range []time.Time{time.Unix(100, 0), time.Unix(100, 1), time.Unix(99, 0),
		time.Unix(-5, 0), time.Unix(100, 999999999), time.Unix(101, 0)} {
		next := Stamp(at, last)
		if !next.After(last) {
			t.Fatalf("%v: %x is not after %x", at, next, last)
		}
		last = next
	}
}

func FuzzOpen(f *testing.F) {
	a, b := pair(f)
	var init [InitiationSize]byte
	if err := a.id.Initiate(a.peer, &b.id.Public, 1, Timestamp{1}, &init); err != nil {
		f.Fatal(err)
	}
	f.Add(init[:])
	f.Fuzz(func(t *testing.T, in []byte) {
		var msg [InitiationSize]byte
		copy(msg[:], in)
		// MACs and the sender's index are not part of the transcript.
		same := bytes.Equal(msg[ephemeralAt:InitiationSize-macsSize],
			init[ephemeralAt:InitiationSize-macsSize])
		if _, err := b.id.Open(&msg); (err == nil) && !same {
			if _, err := b.id.Verify(b.peer, &msg); err == nil {
				t.Error("a forged initiation was accepted")
			}
		}
	})
}

func BenchmarkX25519(b *testing.B) {
	var l ladder
	var out [32]byte
	scalar := [32]byte{1, 2, 3}
	for b.Loop() {
		l.x25519(&out, &scalar, &basePoint)
	}
}

func BenchmarkInitiate(b *testing.B) {
	x, y := pair(b)
	var init [InitiationSize]byte
	for b.Loop() {
		errtest.Must(b, x.id.Initiate(x.peer, &y.id.Public, 1, Timestamp{1}, &init))
	}
}

// BenchmarkRespond measures the cost of an initiation for its responder.
func BenchmarkRespond(b *testing.B) {
	x, y := pair(b)
	var init [InitiationSize]byte
	var out [ResponseSize]byte
	errtest.Must(b, x.id.Initiate(x.peer, &y.id.Public, 1, Timestamp{1}, &init))
	for b.Loop() {
		errtest.Must(b, y.answer(&x.id.Public, &init, &out))
	}
}

// BenchmarkFilter measures the cost of a message of garbage.
func BenchmarkFilter(b *testing.B) {
	f := NewFilter(PublicKey{1})
	var msg [InitiationSize]byte
	for b.Loop() {
		if f.Passes(msg[:]) {
			b.Fatal("garbage passes")
		}
	}
}
