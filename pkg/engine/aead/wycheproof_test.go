package aead

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/cpu"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// vector is a case of Wycheproof's tests of ChaCha20-Poly1305.
type vector struct {
	ID     int      `json:"tcId"`
	Key    hexBytes `json:"key"`
	Nonce  hexBytes `json:"iv"`
	AD     hexBytes `json:"aad"`
	Text   hexBytes `json:"msg"`
	Sealed hexBytes `json:"ct"` // without the tag
	Tag    hexBytes `json:"tag"`
	Result string   `json:"result"`
	Flags  []string `json:"flags"`
}

func (v *vector) String() string { return fmt.Sprintf("vector %d %v", v.ID, v.Flags) }

func (v *vector) valid() bool { return v.Result == "valid" }

type hexBytes []byte

// UnmarshalText reads hexadecimal digits.
func (b *hexBytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.DecodeString(string(text))
	return err
}

// vectors returns Wycheproof's cases with a nonce of 12 bytes. The tiers have room for no other, so
// the nine cases of other sizes do not apply. The module is pinned by hack/tools/wycheproof.
func vectors(t *testing.T) []*vector {
	t.Helper()
	cmd := exec.Command("go", "-C", "../../../hack/tools/wycheproof", "mod", "download", "-json",
		"github.com/c2sp/wycheproof")
	out, err := cmd.CombinedOutput()
	if err != nil {
		nettest.Skip(t, nettest.NoModule, fmt.Sprintf("%v: %v: %s", cmd, err, out))
	}
	var module struct{ Dir string }
	errtest.Must(t, json.Unmarshal(out, &module))

	var file struct {
		Groups []struct {
			Tests []*vector `json:"tests"`
		} `json:"testGroups"`
	}
	b := filetest.Read(t, filepath.Join(module.Dir, "testvectors_v1/chacha20_poly1305_test.json"))
	errtest.Must(t, json.Unmarshal(b, &file))

	var all []*vector
	for _, g := range file.Groups {
		for _, v := range g.Tests {
			if len(v.Nonce) == chacha20poly1305.NonceSize {
				all = append(all, v)
			} else if !slices.Contains(v.Flags, "InvalidNonceSize") {
				t.Errorf("%v has a nonce of %d bytes", v, len(v.Nonce))
			}
		}
	}
	if len(all) != 316 {
		t.Fatalf("%d vectors, want 316", len(all))
	}
	return all
}

// noAVX2 is the environment variable of the test process in which x/crypto must not use AVX2.
const noAVX2 = "KUBEVEIL_TEST_NO_AVX2"

// Each vector passes through the code of the tier. The tier's own Seal and Open write the counter
// alone, so the first four bytes of the nonce can be set before. They take no additional data: the
// vectors that have some go through the AEAD that SealMessage and OpenMessage use.
//
// On amd64 x/crypto has one code for AVX2, and another one, which a second process tests.
func TestWycheproofVectors(t *testing.T) {
	if os.Getenv(noAVX2) != "" && cpu.X86.HasAVX2 {
		t.Fatal("x/crypto sees AVX2")
	}
	_, w, key := worker(t)
	for _, v := range vectors(t) {
		*key = Key(v.Key)
		copy(w.nonce[:], v.Nonce)
		counter := binary.LittleEndian.Uint64(v.Nonce[4:])
		sealed := append(bytes.Clone(v.Sealed), v.Tag...)

		got := append(bytes.Clone(v.Text), make([]byte, Overhead)...)
		at(key).Seal(got[:0], w.nonce[:], got[:len(v.Text)], v.AD)
		if bytes.Equal(got, sealed) != v.valid() || !bytes.Equal(got[:len(v.Text)], v.Sealed) {
			t.Errorf("%v: sealed %x, want %x", v, got, sealed)
		}
		got = bytes.Clone(sealed)
		_, err := at(key).Open(got[:0], w.nonce[:], got, v.AD)
		if (err == nil) != v.valid() || err == nil && !bytes.Equal(got[:len(v.Text)], v.Text) {
			t.Errorf("%v: opened %x, %v, want %x", v, got, err, v.Text)
		}

		if len(v.AD) > 0 {
			continue
		}
		packets := []Packet{{Data: append(bytes.Clone(v.Text), make([]byte, Overhead)...),
			Counter: counter}}
		XCrypto.Seal(w, key, packets)
		if got := packets[0].Data; bytes.Equal(got, sealed) != v.valid() {
			t.Errorf("%v: the tier sealed %x, want %x", v, got, sealed)
		}
		packets[0].Data = bytes.Clone(sealed)
		XCrypto.Open(w, key, packets)
		if p := packets[0]; p.OK != v.valid() || p.OK && !bytes.Equal(p.Data[:len(v.Text)], v.Text) {
			t.Errorf("%v: the tier opened %x, authentic is %v, want %x", v, p.Data, p.OK, v.Text)
		}
	}

	if !cpu.X86.HasAVX2 || os.Getenv(noAVX2) != "" {
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestWycheproofVectors$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), noAVX2+"=1", "GODEBUG=cpu.avx2=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("without AVX2: %v\n%s", err, out)
	}
}
