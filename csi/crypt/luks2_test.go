package crypt

import (
	"bytes"
	"crypto/aes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"golang.org/x/crypto/xts"

	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

var testID = Identity{keyring.Binding{Cluster: "c0ffee00-0000-4000-8000-000000000001",
	Volume: "pvc-1"}, UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}

// dataKey returns a key of 64 bytes c. Real keys never have this form.
func dataKey(t testing.TB, c byte) *keyring.Secret {
	t.Helper()
	s, err := keyring.NewSecret(bytes.Repeat([]byte{c}, DataKeySize))
	errtest.Must(t, err)
	t.Cleanup(s.Wipe)
	return s
}

func deriveKeys(t testing.TB, c byte, b keyring.Binding) *Keys {
	t.Helper()
	k, err := DeriveKeys(dataKey(t, c), b)
	errtest.Must(t, err)
	t.Cleanup(k.Wipe)
	return k
}

func header(t testing.TB, c byte, id Identity) []byte {
	t.Helper()
	h, err := Header(dataKey(t, c), id)
	errtest.Must(t, err)
	return h
}

func TestHeaderIsAFunctionOfKeyAndIdentity(t *testing.T) {
	h := header(t, 1, testID)
	if !bytes.Equal(h, header(t, 1, testID)) {
		t.Error("two headers of one volume differ")
	}
	otherVolume, otherUUID := testID, testID
	otherVolume.Volume, otherUUID.UUID = "pvc-2", UUID{9}
	for name, other := range map[string][]byte{"key": header(t, 2, testID),
		"volume": header(t, 1, otherVolume), "uuid": header(t, 1, otherUUID)} {
		if bytes.Equal(h[keyslotOffset:], other[keyslotOffset:]) {
			t.Errorf("another %s has the same keyslot", name)
		}
	}
	// The derivation is part of the format. If the hash changes, existing volumes cannot be read.
	if sum := sha256.Sum256(h); hex.EncodeToString(sum[:]) != goldenHeader {
		t.Errorf("header of the golden key has SHA-256 %x", sum)
	}
}

func TestHeaderCopies(t *testing.T) {
	h := header(t, 1, testID)
	for i, magic := range []string{luksMagic, luksMagic2} {
		b := bytes.Clone(h[i*luksHeaderSize:][:luksHeaderSize])
		if string(b[:6]) != magic || binary.BigEndian.Uint64(b[256:]) != uint64(i*luksHeaderSize) {
			t.Errorf("copy %d: magic %q at %d", i, b[:6], binary.BigEndian.Uint64(b[256:]))
		}
		sum := bytes.Clone(b[448 : 448+sha256.Size])
		clear(b[448 : 448+64])
		if want := sha256.Sum256(b); !bytes.Equal(sum, want[:]) {
			t.Errorf("copy %d: checksum", i)
		}
		if !bytes.Equal(b[luksBinarySize:], h[luksBinarySize:luksHeaderSize]) {
			t.Errorf("copy %d: JSON differs", i)
		}
	}
	if got := Describe(h); !strings.Contains(got, "LUKS2") ||
		!strings.Contains(got, testID.UUID.String()) {
		t.Errorf("described as %s", got)
	}
}

// The test repeats cryptsetup's steps with the recovery key.
func TestKeyslotOpensWithTheRecoveryKey(t *testing.T) {
	h := header(t, 1, testID)
	var meta luksJSON
	errtest.Must(t,
		json.Unmarshal(bytes.TrimRight(h[luksBinarySize:luksHeaderSize], "\x00"), &meta))

	recovery, err := RecoveryKey(dataKey(t, 1), testID.Binding)
	errtest.Must(t, err)
	defer recovery.Wipe()
	if text := string(recovery.Bytes()); len(text) != 64 || strings.Count(text, "-") != 12 ||
		strings.ToUpper(text) != text {
		t.Errorf("recovery key has the form of %d characters with %d dashes", len(text),
			strings.Count(text, "-"))
	}
	slotKey, err := stretch(recovery, decode64(t, meta.Keyslots["0"].KDF.Salt), KeySize)
	errtest.Must(t, err)

	c, err := xts.NewCipher(aes.NewCipher, slotKey)
	errtest.Must(t, err)

	split := make([]byte, KeySize*stripes)
	for i := 0; i < len(split); i += keyslotSector {
		c.Decrypt(split[i:i+keyslotSector], h[keyslotOffset+i:][:keyslotSector],
			uint64(i/keyslotSector))
	}

	volume := mergeKey(split)
	if want := deriveKeys(t, 1, testID.Binding).Volume; !bytes.Equal(volume, want.Bytes()) {
		t.Error("the keyslot holds another key")
	}

	s, err := keyring.NewSecret(volume)
	errtest.Must(t, err)
	defer s.Wipe()
	d := meta.Digests["0"]
	digest, err := stretch(s, decode64(t, d.Salt), sha256.Size)
	if err != nil || !bytes.Equal(digest, decode64(t, d.Digest)) {
		t.Errorf("digest of the volume key differs: %v", err)
	}
}

// mergeKey undoes splitKey.
func mergeKey(split []byte) []byte {
	sum := make([]byte, KeySize)
	last := len(split) - KeySize
	for i := 0; i < last; i += KeySize {
		for j := range sum {
			sum[j] ^= split[i+j]
		}
		diffuse(sum)
	}
	for j := range sum {
		sum[j] ^= split[last+j]
	}
	return sum
}

func decode64(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	errtest.Must(t, err)
	return b
}

func TestSizes(t *testing.T) {
	for asked, want := range map[int64]int64{0: 4096, 1: 4096, 4096: 4096, 4097: 8192,
		1 << 30: 1 << 30, 1<<30 + 1: 1<<30 + 4096} {
		if got := PayloadSize(asked); got != want || DeviceSize(asked) != want+DataOffset {
			t.Errorf("%d bytes: payload %d, device %d; want %d", asked, got, DeviceSize(asked),
				want)
		}
	}
	if headerEnd > recordA || MetadataSize > DataOffset || keyslotSize < KeySize*stripes {
		t.Error("parts of the layout overlap")
	}
}

func TestUUID(t *testing.T) {
	u, err := NewUUID()
	errtest.Must(t, err)
	if back, err := ParseUUID(u.String()); back != u || err != nil || len(u.String()) != 36 ||
		u.String()[14] != '4' {
		t.Errorf("%s: %s, %v", u, back, err)
	}
	for _, bad := range []string{"", strings.ToUpper(testID.UUID.String())[1:],
		stripDashes(u.String()), u.String() + "0", strings.Repeat("z", 36)} {
		if _, err := ParseUUID(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func TestKeyWithEqualHalvesIsRefused(t *testing.T) {
	if err := CheckKey(make([]byte, KeySize)); err == nil {
		t.Error("accepted a key of two equal halves")
	}
	if err := CheckKey(make([]byte, KeySize/2)); err == nil {
		t.Error("accepted half a key")
	}
}
