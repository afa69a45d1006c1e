package aead

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"math/big"
	"testing"
	"unsafe"

	"golang.org/x/crypto/chacha20"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// laneCode runs the assembly of the tier, on the CPU or in an interpreter.
type laneCode interface {
	chacha(key *byte, texts, counters *uint64, polyKeys *byte, n int)
	poly(state, texts *uint64, n int)
}

// processor is the laneCode that runs on the CPU.
type processor struct{}

func (processor) chacha(key *byte, texts, counters *uint64, polyKeys *byte, n int) {
	chachaLanes(key, texts, counters, polyKeys, n)
}

func (processor) poly(state, texts *uint64, n int) { polyLanes(state, texts, n) }

// Each vector passes through one of the tier's lanes, with random texts in the others. That is the
// whole computation where the nonce begins with four zero bytes, as WireGuard's does.
//
// chachaLanes makes the keystream of no other nonce: it sets word 13 of the state to zero by an
// instruction and does not add it after the rounds, since it is zero. Such a nonce would cost each
// pass an instruction and a load for the sake of this test. For those vectors x/crypto makes the
// keystream, and the tag of each passes through polyLanes all the same.
func TestWycheproofVectorsInLanes(t *testing.T) {
	all := vectors(t)
	t.Run("CPU", func(t *testing.T) {
		needAVX512(t)
		vectorsInLanes(t, all, processor{})
	})
	t.Run("interpreter", func(t *testing.T) { vectorsInLanes(t, all, newMachine(t)) })
}

func vectorsInLanes(t *testing.T, all []*vector, code laneCode) {
	t.Helper()
	_, w, key := worker(t)
	whole := 0
	for i, v := range all {
		lane := i % laneCount
		*key = Key(v.Key)
		var sealed []byte
		var polyKey [32]byte
		if binary.LittleEndian.Uint32(v.Nonce) == 0 {
			whole++
			sealed, polyKey = keystreamOfLane(w, code, key, v, lane)
		} else {
			sealed, polyKey = keystreamOfXCrypto(t, v)
		}

		if !bytes.Equal(sealed, v.Sealed) {
			t.Errorf("%v: sealed %x, want %x", v, sealed, v.Sealed)
		}
		tag := tagOfLane(w, code, polyKey, v, lane)
		if bytes.Equal(tag[:], v.Tag) != v.valid() {
			t.Errorf("%v: tag %x, that of the vector %x", v, tag, v.Tag)
		}
	}
	if whole != 10 {
		t.Errorf("%d vectors with a nonce of the tier, want 10", whole)
	}
}

// The interpreter agrees with x/crypto on lengths around the edges of blocks and of passes, so that
// the assembly is tested where no CPU has AVX-512. It writes nothing behind the texts, and no key,
// text or keystream stays in a register.
func TestInterpretedLanesAgreeWithXCrypto(t *testing.T) {
	code := newMachine(t)
	_, w, key := worker(t)
	for _, n := range []int{0, 1, 15, 16, 17, 63, 64, 65, 74, 100, 127, 128, 129, 191, 192, 193, 202,
		255, 256, 257, 1420, 1440} {
		rand.Read(key[:])
		text := make([]byte, n)
		rand.Read(text)
		packets := randomLanes(0, text)
		packets[1].Counter = 1<<64 - 1
		want, before := make([]Packet, laneCount), make([][]byte, laneCount)
		for i, p := range packets {
			want[i] = Packet{Data: bytes.Clone(p.Data), Counter: p.Counter}
			before[i] = bytes.Clone(p.Data)
		}
		sealEach(w, key, want)

		l, _ := w.fill(packets)
		texts := (*uint64)(unsafe.Pointer(&l.texts))
		code.chacha(&key[0], texts, &l.counters[0], &l.keys[0][0], n)
		if [20]zmm(code.z[:20]) != [20]zmm{} { // The others have numbers of blocks and counters.
			t.Errorf("%d bytes: secrets stay in registers", n)
		}
		l.begin()
		code.poly(&l.poly[0][0], texts, n)
		if code.z != [32]zmm{} {
			t.Errorf("%d bytes: what became of the text stays in registers", n)
		}
		for i, p := range packets {
			if !bytes.Equal(p.Data[n:], before[i][n:]) {
				t.Errorf("%d bytes, lane %d: bytes behind the text were written", n, i)
			}
			l.tag(i, (*[Overhead]byte)(p.Data[n:]))
			if !bytes.Equal(p.Data, want[i].Data) {
				t.Errorf("%d bytes, lane %d: sealed message differs", n, i)
			}
		}
		l.forget()
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
func keystreamOfLane(w *Worker, code laneCode, key *Key, v *vector, lane int) ([]byte, [32]byte) {
	packets := randomLanes(lane, v.Text)
	packets[lane].Counter = binary.LittleEndian.Uint64(v.Nonce[4:])
	l, n := w.fill(packets)
	code.chacha(&key[0], (*uint64)(unsafe.Pointer(&l.texts)), &l.counters[0], &l.keys[0][0], n)
	return packets[lane].Data[:n], l.keys[lane]
}

func keystreamOfXCrypto(t *testing.T, v *vector) (sealed []byte, polyKey [32]byte) {
	t.Helper()
	c, err := chacha20.NewUnauthenticatedCipher(v.Key, v.Nonce)
	errtest.Must(t, err)
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
func tagOfLane(w *Worker, code laneCode, polyKey [32]byte, v *vector,
	lane int) (tag [Overhead]byte) {
	text := bytes.Clone(v.AD)
	for len(text)%16 != 0 {
		text = append(text, 0)
	}
	l, n := w.fill(randomLanes(lane, append(text, v.Sealed...)))
	for i := range l.keys {
		rand.Read(l.keys[i][:])
	}
	l.keys[lane] = polyKey
	l.begin()
	texts := (*uint64)(unsafe.Pointer(&l.texts))
	code.poly(&l.poly[0][0], texts, n)

	l.takeBackLength(lane, n)
	l.poly[0][lane] += uint64(len(v.AD))
	l.poly[1][lane] += uint64(len(v.Sealed)) << (64 - 44)
	code.poly(&l.poly[0][0], texts, 0)
	l.tag(lane, &tag)
	l.forget()
	return tag
}

// takeBackLength sets h of a lane to its value before the block of the length of n bytes.
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
