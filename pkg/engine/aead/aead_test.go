package aead

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/secret"
)

func tiers() []*Tier {
	all := []*Tier{&XCrypto}
	if hasAVX512 {
		all = append(all, &AVX512)
	}
	return all
}

func worker(t testing.TB) (*secret.Arena, *Worker, *Key) {
	t.Helper()
	a := new(secret.Arena)
	t.Cleanup(func() { a.Close() })
	w, err := NewWorker(a)
	errtest.Must(t, err)
	key, err := secret.Alloc[Key](a)
	errtest.Must(t, err)
	return a, w, key
}

func TestEveryTierAgreesWithXCrypto(t *testing.T) {
	for _, tier := range tiers() {
		t.Run(tier.Name, func(t *testing.T) {
			for range 10 {
				errtest.Must(t, prove(tier))
			}
		})
	}
}

func TestWrongTierIsNotChosen(t *testing.T) {
	bad := XCrypto
	bad.Seal = func(w *Worker, key *Key, p []Packet) {
		sealEach(w, key, p)
		if n := len(p) - 1; n > 4 {
			p[n].Data[0] ^= 1
		}
	}
	if err := prove(&bad); err == nil {
		t.Error("a tier that seals wrongly was proven")
	}

	for _, n := range []int{longest, longest + 1} {
		bad = XCrypto
		bad.Seal = func(w *Worker, key *Key, p []Packet) {
			sealEach(w, key, p)
			if len(p[0].Data) == n+Overhead {
				p[0].Data[n] ^= 1
			}
		}
		if err := prove(&bad); err == nil {
			t.Errorf("a tier that seals texts of %d bytes wrongly was proven", n)
		}
	}

	bad = XCrypto
	bad.Open = func(w *Worker, key *Key, p []Packet) {
		openEach(w, key, p)
		for i := range p {
			p[i].OK = true
		}
	}
	if err := prove(&bad); err == nil {
		t.Error("a tier that opens forgeries was proven")
	}
}

// The construction of RFC 8439 with WireGuard's nonce: vectors of the RFC that have no additional
// data and a nonce that begins with four zero bytes (appendix A.5 uses additional data and goes
// through OpenMessage of x/crypto itself).
func TestKeystreamVector(t *testing.T) {
	// RFC 8439, appendix A.1, test vector 2: key 0, nonce 0, block counter 1.
	want, err := hex.DecodeString(
		"9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed" +
			"29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f")
	errtest.Must(t, err)
	for _, tier := range tiers() {
		t.Run(tier.Name, func(t *testing.T) {
			_, w, key := worker(t)
			packets := make([]Packet, 8)
			for i := range packets {
				packets[i].Data = make([]byte, 64+Overhead)
			}
			tier.Seal(w, key, packets)
			for i, p := range packets {
				if !bytes.Equal(p.Data[:64], want) {
					t.Errorf("packet %d: %x, want %x", i, p.Data[:64], want)
				}
			}
		})
	}
}

func TestOneWrongTagDoesNotDropTheGroup(t *testing.T) {
	for _, tier := range tiers() {
		t.Run(tier.Name, func(t *testing.T) {
			_, w, key := worker(t)
			for bad := range 16 {
				packets := make([]Packet, 16)
				for i := range packets {
					packets[i] = Packet{Data: make([]byte, 1420+Overhead), Counter: uint64(i)}
				}
				tier.Seal(w, key, packets)
				packets[bad].Data[1420] ^= 0x80
				tier.Open(w, key, packets)
				for i, p := range packets {
					if p.OK != (i != bad) {
						t.Errorf("packet %d of a group with a forged %d: authentic is %v", i, bad,
							p.OK)
					}
				}
			}
		})
	}
}

func TestSealAndOpenDoNotAllocate(t *testing.T) {
	for _, tier := range tiers() {
		t.Run(tier.Name, func(t *testing.T) {
			_, w, key := worker(t)
			packets := make([]Packet, 45)
			for i := range packets {
				packets[i] = Packet{Data: make([]byte, 1420+Overhead), Counter: uint64(i)}
			}
			if n := testing.AllocsPerRun(20, func() {
				tier.Seal(w, key, packets)
				tier.Open(w, key, packets)
			}); n != 0 {
				t.Errorf("%v allocations, want 0", n)
			}
		})
	}
}

func BenchmarkSeal(b *testing.B) {
	for _, tier := range tiers() {
		for _, size := range []int{1420, 8920} {
			b.Run(tier.Name+"/"+map[int]string{1420: "1420", 8920: "8920"}[size],
				func(b *testing.B) {
					_, w, key := worker(b)
					packets := make([]Packet, 64000/size)
					for i := range packets {
						packets[i] = Packet{Data: make([]byte, size+Overhead), Counter: uint64(i)}
					}
					b.SetBytes(int64(size * len(packets)))
					for b.Loop() {
						tier.Seal(w, key, packets)
					}
				})
		}
	}
}
