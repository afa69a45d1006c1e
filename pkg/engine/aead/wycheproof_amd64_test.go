package aead

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"math/big"
	"testing"
	"unsafe"

	"golang.org/x/crypto/chacha20"
)

// Each vector passes through one of the tier's lanes, with random texts in the others. That is the
// whole computation where the nonce begins with four zero bytes, as WireGuard's does.
//
// chachaLanes makes the keystream of no other nonce: it sets word 13 of the state to zero by an
// instruction and does not add it after the rounds, since it is zero. Such a nonce would cost each
// pass an instruction and a load for the sake of this test. For those vectors x/crypto makes the
// keystream, and the tag of each passes through polyLanes all the same.
func TestWycheproofVectorsInLanes(t *testing.T) {
	needAVX512(t)
	_, w, key := worker(t)
	whole := 0
	for i, v := range vectors(t) {
		lane := i % laneCount
		*key = Key(v.Key)
		var sealed []byte
		var polyKey [32]byte
		if binary.LittleEndian.Uint32(v.Nonce) == 0 {
			whole++
			sealed, polyKey = keystreamOfLane(w, key, v, lane)
		} else {
			sealed, polyKey = keystreamOfXCrypto(t, v)
		}

		if !bytes.Equal(sealed, v.Sealed) {
			t.Errorf("%v: sealed %x, want %x", v, sealed, v.Sealed)
		}
		tag := tagOfLane(w, polyKey, v, lane)
		if bytes.Equal(tag[:], v.Tag) != v.valid() {
			t.Errorf("%v: tag %x, that of the vector %x", v, tag, v.Tag)
		}
	}
	if whole != 10 {
		t.Errorf("%d vectors with a nonce of the tier, want 10", whole)
	}
}

// randomLanes returns packets of n bytes, of which one is text.
func randomLanes(lane int, text []byte) []Packet {
	packets := make([]Packet, laneCount)
	for i := range packets {
		packets[i] = Packet{Data: make([]byte, len(text)+Overhead), Counter: uint64(i)}
		rand.Read(packets[i].Data)
	}
	copy(packets[lane].Data, text)
	return packets
}

// keystreamOfLane seals a vector's text without its tag.
func keystreamOfLane(w *Worker, key *Key, v *vector, lane int) ([]byte, [32]byte) {
	packets := randomLanes(lane, v.Text)
	packets[lane].Counter = binary.LittleEndian.Uint64(v.Nonce[4:])
	l, n := w.fill(packets)
	l.chacha(key, n)
	return packets[lane].Data[:n], l.keys[lane]
}

func keystreamOfXCrypto(t *testing.T, v *vector) (sealed []byte, polyKey [32]byte) {
	t.Helper()
	c, err := chacha20.NewUnauthenticatedCipher(v.Key, v.Nonce)
	if err != nil {
		t.Fatal(err)
	}
	c.XORKeyStream(polyKey[:], polyKey[:])
	c.SetCounter(1)
	sealed = make([]byte, len(v.Text))
	c.XORKeyStream(sealed, v.Text)
	return sealed, polyKey
}

// tagOfLane computes the tag of a vector's additional data and sealed text. The tier takes no
// additional data, and ends each text with the block of its length. So both are one text, padded
// between them, then that block is taken back, and the right one follows: it is added to h, and an
// empty text multiplies the sum.
func tagOfLane(w *Worker, polyKey [32]byte, v *vector, lane int) (tag [Overhead]byte) {
	text := bytes.Clone(v.AD)
	for len(text)%16 != 0 {
		text = append(text, 0)
	}
	l, n := w.fill(randomLanes(lane, append(text, v.Sealed...)))
	for i := range l.keys {
		rand.Read(l.keys[i][:])
	}
	l.keys[lane] = polyKey
	l.sum(n)

	l.takeBackLength(lane, n)
	l.poly[0][lane] += uint64(len(v.AD))
	l.poly[1][lane] += uint64(len(v.Sealed)) << (64 - 44)
	polyLanes(&l.poly[0][0], (*uint64)(unsafe.Pointer(&l.texts)), 0)
	l.tag(lane, &tag)
	l.forget()
	return tag
}

// takeBackLength sets h of a lane to what it was before the block of the length of n bytes.
func (l *lanes) takeBackLength(lane, n int) {
	number := func(first int) *big.Int {
		x := new(big.Int)
		for i := 2; i >= 0; i-- {
			x.Add(x.Lsh(x, 44), new(big.Int).SetUint64(l.poly[first+i][lane]))
		}
		return x
	}

	p := poly1305P()
	h := number(0)
	if r := new(big.Int).ModInverse(number(3), p); r != nil { // Else h was and is 0.
		h.Mul(h, r)
	}
	block := new(big.Int).Lsh(big.NewInt(1), 64)
	h.Sub(h, block.Or(block.Mul(block, big.NewInt(int64(n))), new(big.Int).Lsh(big.NewInt(1), 128)))
	h.Mod(h, p)
	for i, mask := range []int64{mask44, mask44, mask42} {
		l.poly[i][lane] = new(big.Int).And(h, big.NewInt(mask)).Uint64()
		h.Rsh(h, 44)
	}
}
