package keyring

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

var (
	here  = Binding{Cluster: "cluster-1", Volume: "pvc-1"}
	there = Binding{Cluster: "cluster-1", Volume: "pvc-2"}
)

// providers returns two providers of each kind, with different keys.
func providers(t *testing.T) map[string][2]Provider {
	t.Helper()
	fromSecrets := func(c byte) Provider {
		p, err := FromSecrets(map[string]string{SecretKey: kekText(c)})
		errtest.Must(t, err)
		return p
	}
	file := func() Provider {
		path := filepath.Join(t.TempDir(), "kek")
		errtest.Must(t, CreateFile(path))
		p, err := File(path)
		errtest.Must(t, err)
		return p
	}

	plugin := func() Provider {
		p, _ := newPlugin(t)
		return p
	}
	return map[string][2]Provider{
		NameSecret: {fromSecrets(1), fromSecrets(2)},
		NameFile:   {file(), file()},
		NameKMS:    {plugin(), plugin()},
	}
}

func TestProviders(t *testing.T) {
	for name, p := range providers(t) {
		t.Run(name, func(t *testing.T) {
			key := secretOf(t, bytes.Repeat([]byte{7}, 64))
			w, err := WrapChecked(t.Context(), p[0], here, key)
			errtest.Must(t, err)
			text, err := json.Marshal(w)
			errtest.Must(t, err)
			w = Wrapped{}
			if err := json.Unmarshal(text, &w); err != nil || w.IsZero() || w.Provider != name ||
				p[0].Name() != name {
				t.Fatalf("through JSON: %v, provider %q", err, w.Provider)
			}

			got, err := p[0].Unwrap(t.Context(), here, w)
			if err != nil || !got.Equal(key) {
				t.Errorf("unwrap: %v", err)
			}

			got.Wipe()
			var wrong *BindingError
			if _, err := p[0].Unwrap(t.Context(), there, w); !errors.As(err, &wrong) ||
				wrong.Expected != there || wrong.Found != here {
				t.Errorf("another volume: %v", err)
			}
			if _, err := p[0].Unwrap(t.Context(), Binding{"cluster-2", here.Volume},
				w); !errors.As(err, &wrong) {
				t.Errorf("another cluster: %v", err)
			}
			if _, err := p[1].Unwrap(t.Context(), here, w); !errors.Is(err, ErrWrongKey) &&
				!errors.Is(err, ErrUnavailable) {
				t.Errorf("another key: %v", err)
			}

			w.Provider = "other"
			if _, err := p[0].Unwrap(t.Context(), here, w); !errors.Is(err, ErrWrongKey) {
				t.Errorf("another provider: %v", err)
			}
			if _, err := p[0].Wrap(t.Context(), Binding{}, key); err == nil {
				t.Error("wrapped for an empty binding")
			}
		})
	}
}

// A key that came with a request does not outlive the request.
func TestProviderThatIsWipedOpensNothing(t *testing.T) {
	p, err := FromSecrets(map[string]string{SecretKey: kekText(1), SecretPreviousKey: kekText(2)})
	errtest.Must(t, err)
	key := secretOf(t, bytes.Repeat([]byte{7}, 64))
	w, err := p.Wrap(t.Context(), here, key)
	errtest.Must(t, err)
	p.(Wiper).Wipe()
	for _, k := range p.(*local).keys {
		if k.key.Len() != 0 {
			t.Errorf("%d bytes are left of key %s", k.key.Len(), k.id)
		}
	}
	if _, err := p.Unwrap(t.Context(), here, w); err == nil {
		t.Error("the wiped provider still unwraps")
	}
	if _, err := p.Wrap(t.Context(), here, key); err == nil {
		t.Error("the wiped provider still wraps")
	}
}

func TestRewrap(t *testing.T) {
	for name, p := range providers(t) {
		t.Run(name, func(t *testing.T) {
			key := secretOf(t, bytes.Repeat([]byte{7}, 64))
			old, err := p[0].Wrap(t.Context(), here, key)
			errtest.Must(t, err)

			if same, changed, err := Rewrap(t.Context(), p[0], p[0], here, old); changed ||
				err != nil || !bytes.Equal(same.Blob, old.Blob) {
				t.Errorf("under the same key: changed %v, %v", changed, err)
			}

			now, changed, err := Rewrap(t.Context(), p[0], p[1], here, old)
			if err != nil || !changed {
				t.Fatalf("changed %v, %v", changed, err)
			}

			for i, w := range []Wrapped{old, now} {
				if got, err := p[i].Unwrap(t.Context(), here, w); err != nil || !got.Equal(key) {
					t.Errorf("%d: %v", i, err)
				}
			}

			if _, _, err := Rewrap(t.Context(), p[0], p[1], there, old); !errors.As(err,
				new(*BindingError)) {
				t.Errorf("the wrapped key of another volume: %v", err)
			}
		})
	}
}

func TestEachBitOfWrappedIsRefused(t *testing.T) {
	p, err := FromSecrets(map[string]string{SecretKey: kekText(1)})
	errtest.Must(t, err)
	w, err := p.Wrap(t.Context(), here, secretOf(t, make([]byte, 64)))
	errtest.Must(t, err)
	for i := range w.Blob {
		for bit := range 8 {
			w.Blob[i] ^= 1 << bit
			if _, err := p.Unwrap(t.Context(), here, w); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("byte %d bit %d: %v", i, bit, err)
			}
			w.Blob[i] ^= 1 << bit
		}
	}
	for n := range w.Blob {
		cut := w
		cut.Blob = w.Blob[:n]
		if _, err := p.Unwrap(t.Context(), here, cut); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

func TestPreviousKeyOpens(t *testing.T) {
	old, err := FromSecrets(map[string]string{SecretKey: kekText(1)})
	errtest.Must(t, err)
	w, err := old.Wrap(t.Context(), here, secretOf(t, make([]byte, 64)))
	errtest.Must(t, err)
	both, err := FromSecrets(map[string]string{SecretKey: kekText(2),
		SecretPreviousKey: kekText(1)})
	errtest.Must(t, err)
	if _, changed, err := Rewrap(t.Context(), both, both, here, w); err != nil || !changed {
		t.Errorf("changed %v, %v", changed, err)
	}
}

func TestFromSecretsRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		secrets map[string]string
		want    string
	}{
		"nothing": {nil, `"key" of the secret is not base64 of 32`},
		"misspelt": {map[string]string{SecretKey: kekText(1), "prevKey": kekText(2)},
			`unknown entry "prevKey"`},
		"a passphrase": {map[string]string{SecretKey: "hunter2"}, "is not base64 of 32"},
		"too long": {map[string]string{SecretKey: base64.StdEncoding.EncodeToString(
			make([]byte, 33))}, "is not base64 of 32"},
		"all zero": {map[string]string{SecretKey: base64.StdEncoding.EncodeToString(
			make([]byte, 32))}, "not random"},
		"bad previous": {map[string]string{SecretKey: kekText(1), SecretPreviousKey: ""},
			`"previousKey" of the secret is not`},
	} {
		_, err := FromSecrets(c.secrets)
		if !errors.Is(err, ErrSecret) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFileRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kek")
	if _, err := File(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	errtest.Must(t, CreateFile(path))
	if err := CreateFile(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made again: %v", err)
	}
	errtest.Must(t, os.Symlink(path, path+".link"))

	errtest.Must(t, atomicfile.Write(path+".bad", []byte("not a key\n"), 0o600))
	errtest.Must(t, os.Mkdir(path+".dir", 0o600))

	for _, suffix := range []string{".link", ".bad", ".dir"} {
		if _, err := File(path + suffix); !errors.Is(err, ErrSecret) {
			t.Errorf("%s: %v", suffix, err)
		}
	}

	errtest.Must(t, os.Chmod(path, 0o640))
	if _, err := File(path); !errors.Is(err, ErrSecret) || !strings.Contains(err.Error(), "600") {
		t.Errorf("readable by the group: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	key, err := NewSecret(bytes.Repeat([]byte{3}, 64))
	errtest.Must(f, err)
	good, err := seal(here, key)
	errtest.Must(f, err)

	f.Add(bytes.Clone(good.Bytes()))
	f.Add([]byte(envelopeMagic))
	f.Fuzz(func(t *testing.T, p []byte) {
		in := bytes.Clone(p)
		got, err := open(here, p)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.As(err, new(*BindingError)) {
				t.Errorf("untyped: %v", err)
			}
			return
		}
		defer got.Wipe()
		back, err := seal(here, got)
		if err != nil || !bytes.Equal(back.Bytes(), in) {
			t.Errorf("two encodings of one key: %x", in)
		}
		back.Wipe()
	})
}

func secretOf(t *testing.T, b []byte) *Secret {
	t.Helper()
	s, err := NewSecret(b)
	errtest.Must(t, err)
	t.Cleanup(s.Wipe)
	return s
}

// kekText is a key-encryption key in the form of a CSI secret.
func kekText(c byte) string {
	b := bytes.Repeat([]byte{c}, KEKSize)
	b[0] = 0xff
	return base64.StdEncoding.EncodeToString(b)
}

func TestChainUnwrapsWithEachProvider(t *testing.T) {
	all := providers(t)
	old, now := all[NameFile][0], all[NameKMS][0]
	key := secretOf(t, bytes.Repeat([]byte{7}, 64))
	w, err := old.Wrap(t.Context(), here, key)
	errtest.Must(t, err)
	chain := Chain{now, all[NameFile][1], old}
	again, changed, err := Rewrap(t.Context(), chain, chain, here, w)
	if err != nil || !changed || again.Provider != NameKMS {
		t.Fatalf("provider %s, changed %v, %v", again.Provider, changed, err)
	}
	for _, w := range []Wrapped{w, again} {
		if got, err := chain.Unwrap(t.Context(), here, w); err != nil || !got.Equal(key) {
			t.Errorf("wrapped by %s: %v", w.Provider, err)
		}
	}
	if got, err := (Chain{now, chain}).Unwrap(t.Context(), here, w); err != nil || !got.Equal(key) {
		t.Errorf("a chain in a chain: %v", err)
	}
	if _, err := (Chain{now}).Unwrap(t.Context(), here, w); !errors.Is(err, ErrWrongKey) {
		t.Errorf("a chain without the key's provider: %v", err)
	}
}
