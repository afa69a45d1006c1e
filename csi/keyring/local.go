package keyring

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// KEKSize is the size of a key-encryption key in bytes (AES-256).
const KEKSize = 32

// Names of providers.
const (
	NameKMS    = "kms"
	NameSecret = "secret"
	NameFile   = "file"
)

// Entries of the CSI secret that FromSecrets accepts: the key-encryption key, and optionally a
// previous one, which is used only for unwrapping. Each is base64 of 32 random bytes.
const (
	SecretKey         = "key"
	SecretPreviousKey = "previousKey"
)

// ErrSecret means that a CSI secret or a key file is invalid. The message never quotes its values.
var ErrSecret = errors.New("key-encryption key refused")

// local is a Provider that holds the key-encryption key. It wraps with AES-256-GCM, with a random
// nonce before the ciphertext.
type local struct {
	name string
	// keys are the keys for unwrapping. The first one also wraps.
	keys []kek
}

type kek struct {
	id  string
	key *Secret
}

// newKEK returns key with its id, a digest that identifies the key and reveals nothing about it.
func newKEK(key *Secret) kek {
	h := sha256.New()
	h.Write([]byte("kubeveil key-encryption key id\x00"))
	h.Write(key.Bytes())
	return kek{"sha256:" + hex.EncodeToString(h.Sum(nil)[:8]), key}
}

// FromSecrets returns a Provider with the key of a CSI request. It is a Wiper: call Wipe when the
// request ends. An unknown entry is an error, because it is probably misspelt.
func FromSecrets(secrets map[string]string) (Provider, error) {
	p := &local{name: NameSecret}
	for name := range secrets {
		if name != SecretKey && name != SecretPreviousKey {
			return nil, fmt.Errorf("%w: unknown entry %q of the secret: known are %q and %q",
				ErrSecret, name, SecretKey, SecretPreviousKey)
		}
	}
	for _, name := range []string{SecretKey, SecretPreviousKey} {
		text, ok := secrets[name]
		if !ok && name == SecretPreviousKey {
			continue
		}
		key, err := parseKEK([]byte(text))
		if err != nil {
			p.Wipe()
			return nil, fmt.Errorf("%w: entry %q of the secret %w", ErrSecret, name, err)
		}
		p.keys = append(p.keys, newKEK(key))
	}
	return p, nil
}

// File returns a Provider with the key in a file. The owner of that file's disk can decrypt all
// volumes. The file must be regular, have mode 0600, and belong to the user of this process;
// otherwise File returns ErrSecret. File does not create the file: see CreateFile.
func File(path string) (Provider, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; a new key cannot open existing volumes: create it only for a "+
			"new installation", err)
	}

	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSecret, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}

	if st.Mode != unix.S_IFREG|0o600 || int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%w: %s: mode %o of user %d, want a regular file of mode 600 of "+
			"user %d: chmod 600, chown", ErrSecret, path, st.Mode, st.Uid, os.Geteuid())
	}

	text, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return nil, err
	}
	key, err := parseKEK(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %s %w", ErrSecret, path, err)
	}

	return &local{NameFile, []kek{newKEK(key)}}, nil
}

// CreateFile writes a random key-encryption key to a new file of mode 0600. It returns fs.ErrExist
// if the file exists.
func CreateFile(path string) error {
	key, err := Generate(KEKSize)
	if err != nil {
		return err
	}
	defer key.Wipe()
	text := append(base64.StdEncoding.AppendEncode(nil, key.Bytes()), '\n')
	defer clear(text)
	return atomicfile.Create(path, text, 0o600)
}

// parseKEK decodes base64 of 32 bytes, with or without a final line break. It wipes text. Its
// errors never quote text.
func parseKEK(text []byte) (*Secret, error) {
	defer clear(text)
	if n := len(text); n > 0 && text[n-1] == '\n' {
		text = text[:n-1]
	}
	b := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	defer clear(b)
	// Check the length, too, because Decode skips line breaks.
	n, err := base64.StdEncoding.Strict().Decode(b, text)
	if err != nil || n != KEKSize || len(text) != base64.StdEncoding.EncodedLen(KEKSize) {
		return nil, fmt.Errorf("is not base64 of %d bytes: make one with `head -c %d /dev/urandom "+
			"| base64`", KEKSize, KEKSize)
	}
	if !slices.ContainsFunc(b[:n], func(c byte) bool { return c != b[0] }) {
		return nil, errors.New("repeats one byte: it is not random")
	}
	return NewSecret(b[:n])
}

// Wipe implements Wiper.
func (p *local) Wipe() {
	for _, k := range p.keys {
		k.key.Wipe()
	}
}

// Name returns NameSecret or NameFile.
func (p *local) Name() string { return p.name }

// KeyID returns a digest of the key.
func (p *local) KeyID(context.Context) (string, error) { return p.keys[0].id, nil }

// Wrap encrypts locally.
func (p *local) Wrap(_ context.Context, b Binding, key *Secret) (Wrapped, error) {
	plain, err := seal(b, key)
	if err != nil {
		return Wrapped{}, err
	}
	defer plain.Wipe()
	k := p.keys[0]
	c, err := k.aead()
	if err != nil {
		return Wrapped{}, err
	}
	nonce := make([]byte, c.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return Wrapped{}, err
	}
	return Wrapped{Provider: p.name, KeyID: k.id,
		Blob: c.Seal(nonce, nonce, plain.Bytes(), k.extra())}, nil
}

// Unwrap decrypts locally.
func (p *local) Unwrap(_ context.Context, b Binding, w Wrapped) (*Secret, error) {
	if w.Provider != p.name {
		return nil, fmt.Errorf("%s: %w: expected provider %s, found %s", b, ErrWrongKey, p.name,
			w.Provider)
	}
	i := slices.IndexFunc(p.keys, func(k kek) bool { return k.id == w.KeyID })
	if i < 0 {
		return nil, fmt.Errorf("%s: %w: it needs key %s, available are %s", b, ErrWrongKey, w.KeyID,
			p.ids())
	}
	c, err := p.keys[i].aead()
	if err != nil {
		return nil, err
	}
	if len(w.Blob) < c.NonceSize() {
		return nil, fmt.Errorf("%s: %w: %d bytes", b, ErrCorrupt, len(w.Blob))
	}
	plain, err := c.Open(nil, w.Blob[:c.NonceSize()], w.Blob[c.NonceSize():], p.keys[i].extra())
	if err != nil {
		return nil, fmt.Errorf("%s: %w: it does not authenticate under key %s", b, ErrCorrupt,
			w.KeyID)
	}
	return open(b, plain)
}

func (p *local) ids() string {
	var ids []string
	for _, k := range p.keys {
		ids = append(ids, k.id)
	}
	return strings.Join(ids, ", ")
}

func (k kek) aead() (cipher.AEAD, error) {
	defer runtime.KeepAlive(k.key)
	block, err := aes.NewCipher(k.key.Bytes())
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// extra returns the additional authenticated data.
func (k kek) extra() []byte { return []byte("kubeveil wrapped key\x00" + k.id) }
