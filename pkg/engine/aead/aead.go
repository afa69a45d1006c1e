package aead

import (
	"crypto/cipher"
	"encoding/binary"
	"unsafe"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/kubeveil/kubeveil/internal/secret"
)

const (
	// KeySize is the size of a key, bytes.
	KeySize = chacha20poly1305.KeySize
	// Overhead is the size of the tag behind each message, bytes.
	Overhead = chacha20poly1305.Overhead
)

// Key is a ChaCha20-Poly1305 key. It must lie in memory of package secret.
type Key = [KeySize]byte

// Packet is one message of a batch. It is sealed and opened in place.
type Packet struct {
	// Data is the text, followed by Overhead bytes for the tag.
	Data []byte
	// Counter is the nonce.
	Counter uint64
	// OK reports, after Open, whether the tag was right. If not, the text in Data is undefined.
	OK bool
}

// Tier is one implementation of the AEAD. Seal and Open process packets that have one key.
type Tier struct {
	Name string
	Seal func(w *Worker, key *Key, packets []Packet)
	Open func(w *Worker, key *Key, packets []Packet)
}

// Worker is the scratch memory of one thread. It must not be copied.
type Worker struct {
	nonce [chacha20poly1305.NonceSize]byte
	lanes *lanes // secret memory of a tier with several lanes
	// unused is the text of the lanes that have no packet.
	unused unused
}

// NewWorker returns the Worker of a thread. It allocates secret memory from a.
func NewWorker(a *secret.Arena) (*Worker, error) {
	l, err := secret.Alloc[lanes](a)
	if err != nil {
		return nil, err
	}
	return &Worker{lanes: l}, nil
}

// Close zeroes the scratch memory and returns it to a, the arena of NewWorker.
func (w *Worker) Close(a *secret.Arena) { secret.Free(a, w.lanes) }

// XCrypto is the tier that runs on every CPU, from golang.org/x/crypto.
var XCrypto = Tier{Name: "x/crypto", Seal: sealEach, Open: openEach}

func (w *Worker) setCounter(c uint64) { binary.LittleEndian.PutUint64(w.nonce[4:], c) }

func sealEach(w *Worker, key *Key, packets []Packet) {
	secret.Reserve()
	a := at(key)
	for i := range packets {
		p := &packets[i]
		text := p.Data[:len(p.Data)-Overhead]
		w.setCounter(p.Counter)
		a.Seal(text[:0], w.nonce[:], text, nil)
	}
	secret.Scrub()
}

func openEach(w *Worker, key *Key, packets []Packet) {
	secret.Reserve()
	a := at(key)
	for i := range packets {
		p := &packets[i]
		w.setCounter(p.Counter)
		_, err := a.Open(p.Data[:0], w.nonce[:], p.Data, nil)
		p.OK = err == nil
	}
	secret.Scrub()
}

// SealMessage seals text with nonce 0 into dst, which has room for the tag. It is for handshakes,
// whose keys are used once.
func (w *Worker) SealMessage(key *Key, dst, text, ad []byte) {
	secret.Reserve()
	w.setCounter(0)
	at(key).Seal(dst[:0], w.nonce[:], text, ad)
	secret.Scrub()
}

// OpenMessage opens the result of SealMessage into dst, and reports whether it is authentic.
func (w *Worker) OpenMessage(key *Key, dst, sealed, ad []byte) bool {
	secret.Reserve()
	w.setCounter(0)
	_, err := at(key).Open(dst[:0], w.nonce[:], sealed, ad)
	secret.Scrub()
	return err == nil
}

// iface is the layout of an interface value with methods (runtime.iface).
type iface struct{ tab, data unsafe.Pointer }

// template is an AEAD of x/crypto with the zero key. at relies on its concrete type: a struct that
// holds only the 32 bytes of the key. Choose fails if that is not so.
var template = func() cipher.AEAD {
	a, err := chacha20poly1305.New(make([]byte, KeySize))
	if err != nil {
		panic(err)
	}
	return a
}()

// at returns an AEAD of x/crypto that uses the key in place. chacha20poly1305.New would copy the
// key to the heap, where the copy would outlive the session.
func at(key *Key) cipher.AEAD {
	a := template
	(*iface)(unsafe.Pointer(&a)).data = unsafe.Pointer(key)
	return a
}
