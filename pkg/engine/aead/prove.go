package aead

import (
	"bytes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/kubeveil/kubeveil/internal/secret"
)

// Choose returns the fastest tier that this CPU supports and that agrees with x/crypto in every
// bit. If a faster tier does not agree, Choose also returns an error. If XCrypto itself is wrong,
// the tier is nil.
func Choose() (*Tier, error) {
	if err := prove(&XCrypto); err != nil {
		return nil, err
	}
	if !hasAVX512 {
		return &XCrypto, nil
	}
	if err := prove(&AVX512); err != nil {
		return &XCrypto, err
	}
	return &AVX512, nil
}

// longest is the size of the largest text that a tier other than XCrypto processes itself, bytes.
const longest = 9216

// prove compares a tier with x/crypto on batches with random keys, texts, lengths and offsets, and
// with wrong tags. The reference is chacha20poly1305.New and not at, so that prove also checks at.
func prove(t *Tier) error {
	var a secret.Arena
	defer a.Close()
	w, err := NewWorker(&a)
	if err != nil {
		return err
	}
	key, err := secret.Alloc[Key](&a)
	if err != nil {
		return err
	}
	for round := range 40 {
		rand.Read(key[:])
		plain, err := chacha20poly1305.New(key[:])
		if err != nil {
			return fmt.Errorf("prove %s: %w", t.Name, err)
		}
		if err := proveBatch(t, w, key, plain, round); err != nil {
			return fmt.Errorf("prove %s: round %d: %w", t.Name, round, err)
		}
	}
	return nil
}

func proveBatch(t *Tier, w *Worker, key *Key, plain cipher.AEAD, round int) error {
	var dice [64]byte
	rand.Read(dice[:])
	count := 1 + int(dice[0])%24
	length := int(binary.LittleEndian.Uint16(dice[2:])) % 1501
	switch {
	case round == 3:
		length = longest
	case round == 7:
		length = longest + 1
	case round%4 == 3: // As with a large MTU.
		length = int(binary.LittleEndian.Uint16(dice[2:])) % longest
	}
	packets := make([]Packet, count)

	texts := make([][]byte, count)
	for i := range packets {
		n := length
		if i%3 == 2 && round%2 == 1 {
			n = int(binary.LittleEndian.Uint16(dice[4+2*i:])) % 1501
		}
		buf := make([]byte, 64+n+Overhead+64)
		rand.Read(buf)
		off := int(dice[4+i]) % 64
		packets[i] = Packet{Data: buf[off : off+n+Overhead : off+n+Overhead],
			Counter: binary.LittleEndian.Uint64(dice[8+i:])}
		texts[i] = bytes.Clone(packets[i].Data[:n])
	}

	t.Seal(w, key, packets)
	var nonce [chacha20poly1305.NonceSize]byte
	for i, p := range packets {
		binary.LittleEndian.PutUint64(nonce[4:], p.Counter)
		if want := plain.Seal(nil, nonce[:], texts[i], nil); !bytes.Equal(p.Data, want) {
			return fmt.Errorf("sealed message %d of %d, %d bytes, differs", i, count, len(texts[i]))
		}
	}

	// Flip one bit of one message of the batch. All other messages must still open.
	wrong := int(dice[1]) % count
	at := int(binary.LittleEndian.Uint16(dice[60:])) % len(packets[wrong].Data)
	packets[wrong].Data[at] ^= 1 << (dice[62] % 8)
	t.Open(w, key, packets)

	for i, p := range packets {
		if p.OK != (i != wrong) {
			return fmt.Errorf("opened message %d of %d, %d bytes: authentic is %v", i, count,
				len(texts[i]), p.OK)
		}
		if p.OK && !bytes.Equal(p.Data[:len(texts[i])], texts[i]) {
			return fmt.Errorf("opened message %d of %d, %d bytes, differs", i, count, len(texts[i]))
		}
	}

	return nil
}
