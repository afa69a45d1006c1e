package storage

import (
	"bytes"
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// Each attempt changes copies of the disks, not the disks themselves, because the disks are
// restored afterwards.
func TestAttemptsChangeCopies(t *testing.T) {
	const size = 1 << 20
	image := func(fill byte) []byte {
		b := bytes.Repeat([]byte{fill}, size)
		copy(b[4096:], `{"encryption":"aes-xts-plain64"}`)
		return b
	}
	first, second := image(1), image(2)
	wantFirst, wantSecond := bytes.Clone(first), bytes.Clone(second)
	for _, a := range attempts(image(3)) {
		newFirst, newSecond := a.change(first, second)
		if len(newFirst) != size || len(newSecond) != size || bytes.Equal(newFirst, wantFirst) ||
			a.want == "" {
			t.Errorf("%s: %d and %d bytes, the first disk the same: %v", a.what, len(newFirst),
				len(newSecond), bytes.Equal(newFirst, wantFirst))
		}
		if !bytes.Equal(first, wantFirst) || !bytes.Equal(second, wantSecond) {
			t.Fatalf("%s: changed the images that are to be put back", a.what)
		}
	}
	if got := nullCipher(first); !bytes.Contains(got[:crypt.MetadataSize],
		[]byte("cipher_null-ecb")) {
		t.Error("the cipher is not replaced")
	}
}

func TestPrintable(t *testing.T) {
	if got := printable([]byte("a\x00\xff\n~")); got != "a...~" {
		t.Errorf("%q", got)
	}
}
