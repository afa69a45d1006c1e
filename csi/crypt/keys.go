package crypt

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Identity identifies a volume. It comes from the trusted state.
type Identity struct {
	keyring.Binding
	UUID UUID
}

// Labels of derived keys. Changing one makes every existing volume unreadable.
const (
	volumeLabel   = "kubeveil volume key v1"
	recordLabel   = "kubeveil record key v1"
	recoveryLabel = "kubeveil recovery key v1"
	streamLabel   = "kubeveil header stream v1"
)

// Keys are derived from the data key of a volume. Wipe them after use.
type Keys struct {
	// Volume is dm-crypt's key.
	Volume *keyring.Secret
	// record authenticates the sealed record.
	record *keyring.Secret
}

// NewDataKey makes the random key of a new volume.
func NewDataKey() (*keyring.Secret, error) { return keyring.Generate(DataKeySize) }

// DeriveKeys derives the volume's keys from its data key. The caller wipes both.
func DeriveKeys(data *keyring.Secret, b keyring.Binding) (*Keys, error) {
	volume, err := data.Derive(volumeLabel, KeySize)
	if err != nil {
		return nil, fmt.Errorf("keys of %s: %w", b, err)
	}
	record, err := data.Derive(bound(recordLabel, b), 32)
	if err != nil {
		volume.Wipe()
		return nil, fmt.Errorf("keys of %s: %w", b, err)
	}
	return &Keys{Volume: volume, record: record}, nil
}

// Sealing returns a copy of the keys that verify and seal the record. They cannot decrypt data,
// because Volume is nil. The caller wipes them.
func (k *Keys) Sealing() (*Keys, error) {
	defer runtime.KeepAlive(k.record)
	record, err := keyring.NewSecret(bytes.Clone(k.record.Bytes()))
	if err != nil {
		return nil, fmt.Errorf("key of the record: %w", err)
	}
	return &Keys{record: record}, nil
}

// Wipe overwrites the keys. A nil receiver is allowed.
func (k *Keys) Wipe() {
	if k != nil {
		k.Volume.Wipe()
		k.record.Wipe()
	}
}

// RecoveryKey returns the passphrase with which stock cryptsetup opens the volume. It is 256 bits
// as 13 groups of 4 letters and digits, separated by dashes. The caller wipes it.
func RecoveryKey(data *keyring.Secret, b keyring.Binding) (*keyring.Secret, error) {
	raw, err := data.Derive(bound(recoveryLabel, b), 32)
	if err != nil {
		return nil, fmt.Errorf("recovery key of %s: %w", b, err)
	}
	defer raw.Wipe()
	plain := base32.StdEncoding.WithPadding(base32.NoPadding).AppendEncode(nil, raw.Bytes())
	defer clear(plain)
	text := make([]byte, 0, 64)
	for i := 0; i < len(plain); i += 4 {
		if i > 0 {
			text = append(text, '-')
		}
		text = append(text, plain[i:i+4]...)
	}
	return keyring.NewSecret(text)
}

// bound returns label with the names in b appended, so that every volume has its own label.
func bound(label string, b keyring.Binding) string {
	out := append([]byte(label), 0)
	for _, s := range []string{b.Cluster, b.Volume} {
		out = binary.BigEndian.AppendUint16(out, uint16(len(s)))
		out = append(out, s...)
	}
	return string(out)
}

// headerStream returns the stream of bytes that an ordinary LUKS2 header takes from a random
// source. The stream is AES-256-CTR with a key that depends only on the data key and the UUID.
func headerStream(data *keyring.Secret, u UUID) (io.Reader, error) {
	key, err := data.Derive(streamLabel+"\x00"+string(u[:]), 32)
	if err != nil {
		return nil, err
	}
	defer key.Wipe()
	block, err := aes.NewCipher(key.Bytes())
	if err != nil {
		return nil, err
	}
	return cipher.StreamReader{S: cipher.NewCTR(block, make([]byte, aes.BlockSize)),
		R: zeros{}}, nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// CheckKey returns an error if the volume key has a wrong size or two equal halves. XTS must not
// use equal halves (FIPS 140), and a random key never has them.
func CheckKey(key []byte) error {
	if len(key) != KeySize {
		return fmt.Errorf("volume key has %d bytes, want %d", len(key), KeySize)
	}
	if string(key[:KeySize/2]) == string(key[KeySize/2:]) {
		return errors.New("volume key has two equal halves")
	}
	return nil
}
