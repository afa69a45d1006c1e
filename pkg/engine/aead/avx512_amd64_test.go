package aead

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"testing"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// needAVX512 skips the test where the CPU cannot run the tier.
func needAVX512(t testing.TB) {
	t.Helper()
	if !hasAVX512 {
		nettest.Skip(t, nettest.NoAVX512, "the tier was not tested")
	}
}

// The lanes agree with x/crypto for every length around the edges of blocks and for every number of
// lanes in use. Each text ends at the end of mapped memory, so an access behind it is a fault.
func TestLanesOfEveryLength(t *testing.T) {
	needAVX512(t)
	_, w, key := worker(t)
	rand.Read(key[:])
	plain, err := chacha20poly1305.New(key[:])
	errtest.Must(t, err)

	lengths := []int{1279, 1280, 1281, 1404, 1408, 1420, 1424, 1500, 4095, 4096, 8920, 8940,
		maxLaneText - 1, maxLaneText}
	for n := range 400 {
		lengths = append(lengths, n)
	}

	page := unix.Getpagesize()
	size := laneCount * (maxLaneText + Overhead + 2*page)
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	errtest.Must(t, err)
	defer unix.Munmap(m)

	// Each lane ends at a page that may not be touched.
	var ends [laneCount]int
	each := size / laneCount / page * page
	for i := range ends {
		ends[i] = (i+1)*each - page
		errtest.Must(t, unix.Mprotect(m[ends[i]:ends[i]+page], unix.PROT_NONE))
	}

	nonce := make([]byte, chacha20poly1305.NonceSize)
	for i, n := range lengths {
		used := 1 + i%laneCount
		packets := make([]Packet, used)
		want := make([][]byte, used)
		for j := range packets {
			packets[j] = Packet{Data: m[ends[j]-n-Overhead : ends[j]],
				Counter: uint64(1)<<uint(7*j) + uint64(i)}
			rand.Read(packets[j].Data)
			w.setCounter(packets[j].Counter)
			copy(nonce, w.nonce[:])
			want[j] = plain.Seal(nil, nonce, packets[j].Data[:n], nil)
		}

		texts := make([][]byte, used)
		for j := range packets {
			texts[j] = bytes.Clone(packets[j].Data[:n])
		}

		sealGroup(w, key, packets)
		for j := range packets {
			if !bytes.Equal(packets[j].Data, want[j]) {
				t.Fatalf("%d bytes, lane %d of %d: sealed message differs", n, j, used)
			}
		}

		openGroup(w, key, packets)
		for j := range packets {
			if !packets[j].OK || !bytes.Equal(packets[j].Data[:n], texts[j]) {
				t.Fatalf("%d bytes, lane %d of %d: opened message differs", n, j, used)
			}
		}

		if *w.lanes != (lanes{}) {
			t.Fatal("the scratch is not zeroed")
		}
	}
}

// Poly1305 is right where h is near 2^130-5, so that the carries and the last reduction matter. The
// texts and keys consist of ones and zeros, like vectors 7 to 11 in appendix A.3 of RFC 8439.
func TestLanesAtTheEdgesOfPoly1305(t *testing.T) {
	needAVX512(t)
	_, w, _ := worker(t)
	for _, tc := range []struct {
		name    string
		r, text []byte
		s       byte
	}{
		{"RFC 8439, A.3, vector 7", []byte{1}, append(bytes.Repeat([]byte{0xff}, 16),
			append(append([]byte{0xf0}, bytes.Repeat([]byte{0xff}, 15)...),
				append([]byte{0x11}, make([]byte, 15)...)...)...), 0},
		{"RFC 8439, A.3, vector 8", []byte{1}, append(bytes.Repeat([]byte{0xff}, 16),
			append(append([]byte{0xfb}, bytes.Repeat([]byte{0xfe}, 15)...),
				bytes.Repeat([]byte{1}, 16)...)...), 0},
		{"RFC 8439, A.3, vector 9", []byte{2},
			append([]byte{0xfd}, bytes.Repeat([]byte{0xff}, 15)...), 0},
		{"ones", bytes.Repeat([]byte{0xff}, 16), bytes.Repeat([]byte{0xff}, 1000), 0xff},
	} {
		t.Run(tc.name, func(t *testing.T) {
			packets := make([]Packet, laneCount)
			for i := range packets {
				packets[i].Data = append(bytes.Clone(tc.text), make([]byte, Overhead)...)
			}

			l, n := w.fill(packets)
			for i := range l.keys {
				copy(l.keys[i][:16], tc.r)
				l.keys[i][16] = tc.s
			}

			l.sum(n)
			key := l.keys[0]
			want := naivePoly(key, tc.text)
			for i := range packets {
				var tag [Overhead]byte
				l.tag(i, &tag)
				if tag != want {
					t.Errorf("lane %d: %x, want %x", i, tag, want)
				}
			}
		})
	}
}

func BenchmarkLanes(b *testing.B) {
	needAVX512(b)
	for used := range laneCount + 1 {
		if used == 0 {
			continue
		}
		b.Run(fmt.Sprint(used), func(b *testing.B) {
			_, w, key := worker(b)
			packets := make([]Packet, used)
			for i := range packets {
				packets[i].Data = make([]byte, 1420+Overhead)
			}
			b.SetBytes(int64(1420 * used))
			for b.Loop() {
				sealGroup(w, key, packets)
			}
		})
	}
}
