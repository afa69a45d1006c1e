package keyring

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha512"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/memtest"
	"github.com/kubeveil/kubeveil/internal/secret"
)

// TestMain runs the tests in a process in which the runtime does not copy stacks, as in veil-csi.
func TestMain(m *testing.M) {
	if err := secret.KeepStacks(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestDeriveIsHKDF(t *testing.T) {
	s, err := Generate(sha512.Size)
	errtest.Must(t, err)
	defer s.Wipe()
	for _, info := range []string{"", "a label", strings.Repeat("x", 300)} {
		for _, n := range []int{1, 32, 63, 64, 65, 128, 129, MaxSize} {
			want, err := hkdf.Expand(sha512.New, s.Bytes(), info, n)
			errtest.Must(t, err)
			got, err := s.Derive(info, n)
			errtest.Must(t, err)
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%d bytes for %q: %x, want %x", n, info, got.Bytes(), want)
			}
			got.Wipe()
		}
	}

	short, err := Generate(32)
	errtest.Must(t, err)
	defer short.Wipe()
	for of, n := range map[*Secret]int{short: 32, s: MaxSize + 1} {
		if _, err := of.Derive("", n); err == nil {
			t.Errorf("%d bytes of %d", n, of.Len())
		}
	}
}

// Neither the data key nor a key derived from it stays in memory once they are wiped, even if the
// garbage collector runs meanwhile. Without secret.KeepStacks, copies would be left on former
// stacks.
func TestDeriveLeavesNoKeyBehind(t *testing.T) {
	s, err := Generate(sha512.Size)
	errtest.Must(t, err)
	first, err := s.Derive("", 2*sha512.Size)
	errtest.Must(t, err)
	wanted := append(memtest.Covered(s.Bytes()), memtest.Covered(first.Bytes())...)
	first.Wipe()

	end := time.Now().Add(3 * time.Second)
	var deriving sync.WaitGroup
	for range 8 {
		deriving.Go(func() {
			for time.Now().Before(end) {
				out, err := s.Derive("", 2*sha512.Size)
				if err != nil {
					t.Error(err)
					return
				}
				out.Wipe()
			}
		})
	}
	for time.Now().Before(end) {
		runtime.GC()
	}
	deriving.Wait()

	const most = 32 // the length of the pieces that Count searches for
	if memtest.Count(t, wanted[:most], memtest.Everywhere) != 1 {
		t.Error("the data key is not found in memory while it is in use")
	}
	s.Wipe()
	for at := 0; at < len(wanted); at += most {
		if n := memtest.Count(t, wanted[at:at+most], memtest.Everywhere); n > 0 {
			t.Errorf("bytes %d to %d of the keys are found %d times in memory", at, at+most, n)
		}
	}
}
