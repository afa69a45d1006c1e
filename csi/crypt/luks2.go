package crypt

import (
	"crypto/aes"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/crypto/xts"

	"github.com/kubeveil/kubeveil/csi/keyring"
)

// The LUKS2 on-disk format, version 2.1 (LUKS2 On-Disk Format Specification by M. Brož).
const (
	luksMagic  = "LUKS\xba\xbe"
	luksMagic2 = "SKUL\xba\xbe"
	// iterations is the smallest PBKDF2 count that cryptsetup writes. More iterations would add
	// nothing, because the passphrase has 256 random bits.
	iterations = 1000
	// stripes is the number of stripes of the anti-forensic splitter. cryptsetup supports no other.
	stripes = 4000
	// keyslotSector is the unit in which keyslots are encrypted, in bytes.
	keyslotSector = 512
	subsystem     = "kubeveil"
)

// These types are the JSON of the header, in the order in which it is written. LUKS2 writes sizes
// that may exceed 32 bits as strings.
type (
	luksJSON struct {
		Keyslots map[string]luksKeyslot `json:"keyslots"`
		Tokens   struct{}               `json:"tokens"`
		Segments map[string]luksSegment `json:"segments"`
		Digests  map[string]luksDigest  `json:"digests"`
		Config   luksConfig             `json:"config"`
	}
	luksKeyslot struct {
		Type    string   `json:"type"`
		KeySize int      `json:"key_size"`
		AF      luksAF   `json:"af"`
		Area    luksArea `json:"area"`
		KDF     luksKDF  `json:"kdf"`
	}
	luksAF struct {
		Type    string `json:"type"`
		Stripes int    `json:"stripes"`
		Hash    string `json:"hash"`
	}
	luksArea struct {
		Type       string `json:"type"`
		Offset     string `json:"offset"`
		Size       string `json:"size"`
		Encryption string `json:"encryption"`
		KeySize    int    `json:"key_size"`
	}
	luksKDF struct {
		Type       string `json:"type"`
		Hash       string `json:"hash"`
		Iterations int    `json:"iterations"`
		Salt       string `json:"salt"`
	}
	luksSegment struct {
		Type       string `json:"type"`
		Offset     string `json:"offset"`
		Size       string `json:"size"`
		IVTweak    string `json:"iv_tweak"`
		Encryption string `json:"encryption"`
		SectorSize int    `json:"sector_size"`
	}
	luksDigest struct {
		Type       string   `json:"type"`
		Keyslots   []string `json:"keyslots"`
		Segments   []string `json:"segments"`
		Hash       string   `json:"hash"`
		Iterations int      `json:"iterations"`
		Salt       string   `json:"salt"`
		Digest     string   `json:"digest"`
	}
	luksConfig struct {
		JSONSize     string `json:"json_size"`
		KeyslotsSize string `json:"keyslots_size"`
	}
)

// HeaderSize is the size in bytes of the header that Header returns.
const HeaderSize = headerEnd

// Header returns the LUKS2 header of the volume, keyslot included. Stock cryptsetup needs only this
// header and the RecoveryKey to open the volume. Header is a pure function of its arguments.
func Header(data *keyring.Secret, id Identity) ([]byte, error) {
	out := make([]byte, headerEnd)
	if err := putHeader(out, data, id); err != nil {
		return nil, err
	}
	return out, nil
}

// putHeader writes the header of Header to out, which must be HeaderSize zeros.
func putHeader(out []byte, data *keyring.Secret, id Identity) error {
	defer runtime.KeepAlive(data)
	volume, err := data.Derive(volumeLabel, KeySize)
	if err != nil {
		return fmt.Errorf("header of %s: %w", id, err)
	}
	defer volume.Wipe()
	if err := CheckKey(volume.Bytes()); err != nil {
		return fmt.Errorf("header of %s: %w", id, err)
	}
	recovery, err := RecoveryKey(data, id.Binding)
	if err != nil {
		return err
	}
	defer recovery.Wipe()
	stream, err := headerStream(data, id.UUID)
	if err != nil {
		return err
	}
	if err := writeHeader(out, stream, volume, recovery, id.UUID); err != nil {
		return fmt.Errorf("header of %s: %w", id, err)
	}
	return nil
}

func writeHeader(out []byte, stream io.Reader, volume, recovery *keyring.Secret, id UUID) error {
	// The order in which the stream is used is part of the format.
	var salts [2][64]byte
	var kdfSalt, digestSalt [32]byte
	for _, p := range [][]byte{salts[0][:], salts[1][:], kdfSalt[:], digestSalt[:]} {
		if _, err := io.ReadFull(stream, p); err != nil {
			return err
		}
	}

	slotKey, err := stretch(recovery, kdfSalt[:], KeySize)
	if err != nil {
		return err
	}
	defer clear(slotKey)
	if err := writeKeyslot(out[keyslotOffset:], stream, volume.Bytes(), slotKey); err != nil {
		return err
	}
	digest, err := stretch(volume, digestSalt[:], sha256.Size)
	if err != nil {
		return err
	}

	text, err := json.Marshal(newJSON(kdfSalt[:], digestSalt[:], digest))
	if err != nil {
		return err
	}

	for i, magic := range []string{luksMagic, luksMagic2} {
		writeBinary(out[i*luksHeaderSize:][:luksHeaderSize], magic, uint64(i*luksHeaderSize),
			salts[i], id, text)
	}
	return nil
}

// stretch returns PBKDF2 of s with n bytes. It passes the secret's locked memory to the library as
// a string, because a copy in a string could not be wiped.
func stretch(s *keyring.Secret, salt []byte, n int) ([]byte, error) {
	defer runtime.KeepAlive(s)
	b := s.Bytes()
	return pbkdf2.Key(sha256.New, unsafe.String(unsafe.SliceData(b), len(b)), salt, iterations, n)
}

func newJSON(kdfSalt, digestSalt, digest []byte) luksJSON {
	b64 := base64.StdEncoding.EncodeToString
	return luksJSON{
		Keyslots: map[string]luksKeyslot{"0": {
			Type: "luks2", KeySize: KeySize,
			AF: luksAF{"luks1", stripes, "sha256"},
			Area: luksArea{"raw", strconv.Itoa(keyslotOffset), strconv.Itoa(keyslotSize), Cipher,
				KeySize},
			KDF: luksKDF{"pbkdf2", "sha256", iterations, b64(kdfSalt)},
		}},
		Segments: map[string]luksSegment{"0": {"crypt", strconv.Itoa(DataOffset), "dynamic", "0",
			Cipher, SectorSize}},
		Digests: map[string]luksDigest{"0": {"pbkdf2", []string{"0"}, []string{"0"}, "sha256",
			iterations, b64(digestSalt), b64(digest)}},
		Config: luksConfig{strconv.Itoa(luksHeaderSize - luksBinarySize),
			strconv.Itoa(keyslotSize)},
	}
}

// writeBinary writes one copy of the header to out. It writes the checksum last (specification,
// 2.1).
func writeBinary(out []byte, magic string, offset uint64, salt [64]byte, id UUID, text []byte) {
	copy(out, magic)
	binary.BigEndian.PutUint16(out[6:], 2)
	binary.BigEndian.PutUint64(out[8:], luksHeaderSize)
	binary.BigEndian.PutUint64(out[16:], 1) // The sequence id: the header is written once.
	copy(out[72:], "sha256")
	copy(out[104:], salt[:])
	copy(out[168:], id.String())
	copy(out[208:], subsystem)
	binary.BigEndian.PutUint64(out[256:], offset)
	copy(out[luksBinarySize:], text)
	sum := sha256.Sum256(out)
	copy(out[448:], sum[:])
}

// writeKeyslot splits the volume key into stripes in out. It encrypts the stripes in place, so that
// none stays in clear.
func writeKeyslot(out []byte, stream io.Reader, volume, slotKey []byte) error {
	c, err := xts.NewCipher(aes.NewCipher, slotKey)
	if err != nil {
		return err
	}
	split := out[:KeySize*stripes]
	if err := splitKey(split, volume, stream); err != nil {
		return err
	}
	for i := 0; i < len(split); i += keyslotSector {
		sector := split[i : i+keyslotSector]
		c.Encrypt(sector, sector, uint64(i/keyslotSector))
	}
	return nil
}

// splitKey is the anti-forensic splitter of LUKS1 with SHA-256. All stripes but the last come from
// the stream. The last stripe is chosen so that the diffused sum of all stripes is the key.
func splitKey(out, key []byte, stream io.Reader) error {
	last := len(out) - len(key)
	if _, err := io.ReadFull(stream, out[:last]); err != nil {
		return err
	}
	sum := make([]byte, len(key))
	defer clear(sum)
	for i := 0; i < last; i += len(key) {
		subtle.XORBytes(sum, sum, out[i:i+len(key)])
		diffuse(sum)
	}
	subtle.XORBytes(out[last:], sum, key)
	return nil
}

// diffuse replaces each block of b by the SHA-256 of the block's number and content.
func diffuse(b []byte) {
	var in [4 + sha256.Size]byte
	for i := 0; i*sha256.Size < len(b); i++ {
		binary.BigEndian.PutUint32(in[:], uint32(i))
		n := copy(in[4:], b[i*sha256.Size:])
		sum := sha256.Sum256(in[:4+n])
		copy(b[i*sha256.Size:], sum[:])
	}
}
