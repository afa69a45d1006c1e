package keyring

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

func TestSecretHasNoTextForm(t *testing.T) {
	const canary = "correct horse battery staple"
	s, err := NewSecret([]byte(canary))
	errtest.Must(t, err)
	defer s.Wipe()
	type holder struct {
		S *Secret
		s Secret
	}

	h := holder{s, *s}
	var b bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%p", "%t",
		"%b"} {
		fmt.Fprintf(&b, verb+verb+verb+verb, s, *s, h, &h)
	}

	text, err := json.Marshal(h)
	errtest.Must(t, err)

	b.Write(text)
	slog.New(slog.NewTextHandler(&b, nil)).Info("key", "a", s, "b", *s, "c", h)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("key", "a", s, "b", *s, "c", h)

	for _, form := range []string{canary, canary[:8], fmt.Sprintf("%x", canary[:8]),
		base64.StdEncoding.EncodeToString([]byte(canary))[:12],
		fmt.Sprint([]byte(canary[:4]))[1:10]} {
		if strings.Contains(strings.ToLower(b.String()), strings.ToLower(form)) {
			t.Errorf("the key is printed as %q", form)
		}
	}

	if !strings.Contains(b.String(), redacted) {
		t.Error("the secret is not redacted")
	}
}

func TestSecretIsWiped(t *testing.T) {
	source := bytes.Repeat([]byte{0xa5}, 64)
	s, err := NewSecret(source)
	errtest.Must(t, err)
	if source[0] != 0 || s.Bytes()[0] != 0xa5 {
		t.Error("the source was not moved")
	}

	memory := s.Bytes()
	s.Wipe()
	s.Wipe()
	if s.Len() != 0 || !bytes.Equal(memory, make([]byte, 64)) {
		t.Error("the secret is not empty")
	}

	other, err := Generate(64)
	errtest.Must(t, err)
	defer other.Wipe()
	if s.Len() != 0 || s.Equal(s) || other.Equal(s) || !other.Equal(other) {
		t.Error("a wiped secret shares memory with a new secret")
	}

	var none *Secret
	none.Wipe()
	if none.Len() != 0 || none.Equal(none) {
		t.Error("a nil secret is not empty")
	}

	for _, n := range []int{-1, 0, MaxSize + 1} {
		if _, err := Generate(n); err == nil {
			t.Errorf("made a secret of %d bytes", n)
		}
	}
}

func TestSecretMemoryIsLocked(t *testing.T) {
	s, err := Generate(64)
	errtest.Must(t, err)
	defer s.Wipe()
	smaps := filetest.Read(t, "/proc/self/smaps")
	var flags string
	addr, inside := uint64(uintptr(unsafe.Pointer(&s.Bytes()[0]))), false
	for line := range strings.Lines(string(smaps)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= addr && addr < to
		} else if found, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			flags = strings.TrimSpace(found)
		}
	}
	for _, want := range []string{"lo", "dd", "dc"} {
		if !strings.Contains(" "+flags+" ", " "+want+" ") {
			t.Errorf("memory of the secret has flags %q, want %s", flags, want)
		}
	}
}

func TestDeriveIsAFunctionOfKeyAndInfo(t *testing.T) {
	key := secretOf(t, bytes.Repeat([]byte{1}, 64))
	a, err := key.Derive("a", 32)
	errtest.Must(t, err)
	again, _ := key.Derive("a", 32)
	b, _ := key.Derive("b", 32)
	if !a.Equal(again) || a.Equal(b) || a.Len() != 32 {
		t.Error("derivation is not a function of key and info")
	}
	if _, err := a.Derive("c", 32); err == nil {
		t.Error("derived from a key that is too short")
	}
}

func TestForgottenSecretIsCollected(t *testing.T) {
	func() {
		errtest.Must(t, errtest.Of(Generate(64)))
	}()
	vault.mu.Lock()
	before := len(vault.free)
	vault.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for ctx.Err() == nil {
		runtime.GC()
		vault.mu.Lock()
		now := len(vault.free)
		vault.mu.Unlock()
		if now > before {
			return
		}
		runtime.Gosched()
	}
}

// The garbage collector may find a Secret unused while it is being wiped, because Wipe is its last
// use. If its memory were then released twice, two secrets would get the same memory.
func TestWipedSecretIsGivenBackOnce(t *testing.T) {
	var wiping sync.WaitGroup
	for range 16 {
		wiping.Go(func() {
			for range 50000 {
				s, err := Generate(1)
				if err != nil {
					t.Error(err)
					return
				}
				s.Wipe()
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		wiping.Wait()
		close(ended)
	}()
	for wiped := false; !wiped; {
		runtime.GC()
		select {
		case <-ended:
			wiped = true
		default:
		}
	}

	vault.mu.Lock()
	defer vault.mu.Unlock()
	given := map[*byte]int{}
	for _, slot := range vault.free {
		if given[&slot[0]]++; given[&slot[0]] == 2 {
			t.Error("memory of a secret was released twice")
		}
	}
}
