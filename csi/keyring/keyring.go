package keyring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
)

// Errors of providers. Callers retry only after ErrUnavailable.
var (
	// ErrUnavailable means that the key service did not answer, or failed. Try again.
	ErrUnavailable = errors.New("key service unavailable")
	// ErrWrongKey means that the key was wrapped with another key-encryption key, or by another
	// provider.
	ErrWrongKey = errors.New("wrapped by another key")
	// ErrCorrupt means that a wrapped key does not authenticate, or was not made by this package.
	ErrCorrupt = errors.New("wrapped key is damaged")
)

// Binding is the context to which a wrapped key is bound. Both fields are compared after
// unwrapping.
type Binding struct {
	// Cluster is the id of the cluster: the UID of the namespace kube-system.
	Cluster string
	// Volume is the CSI volume id.
	Volume string
}

func (b Binding) String() string {
	return fmt.Sprintf("volume %q of cluster %q", b.Volume, b.Cluster)
}

// BindingError means that a wrapped key belongs to another volume or cluster.
type BindingError struct{ Expected, Found Binding }

func (e *BindingError) Error() string {
	return fmt.Sprintf("wrapped key is of another volume: expected %s, found %s", e.Expected,
		e.Found)
}

// Wrapped is a wrapped key. It may be stored where others can read it.
type Wrapped struct {
	// Provider is the name of the provider that wrapped the key.
	Provider string `json:"provider"`
	// KeyID is the provider's name of the key-encryption key.
	KeyID string `json:"keyID"`
	// Blob is the ciphertext.
	Blob []byte `json:"blob"`
	// Annotations are data that a KMS plugin needs for unwrapping, keyed by name. They may be nil.
	Annotations map[string][]byte `json:"annotations,omitempty"`
}

// IsZero reports whether w holds no wrapped key.
func (w Wrapped) IsZero() bool { return w.Provider == "" && len(w.Blob) == 0 }

// Provider wraps keys with a key-encryption key that it holds or can reach. Its methods may be
// called from several goroutines. The caller wipes returned secrets.
type Provider interface {
	// Name returns the provider's name: kms, secret or file.
	Name() string
	// KeyID returns the name of the key-encryption key that Wrap uses now.
	KeyID(ctx context.Context) (string, error)
	// Wrap wraps key for b.
	Wrap(ctx context.Context, b Binding, key *Secret) (Wrapped, error)
	// Unwrap returns the key that was wrapped for b. It returns a *BindingError if the key was
	// wrapped for another binding.
	Unwrap(ctx context.Context, b Binding, w Wrapped) (*Secret, error)
}

// Wiper is a Provider that holds keys itself. Wipe overwrites them. Wipe must not run concurrently
// with other calls. After it, the provider must not be used.
type Wiper interface {
	Provider
	Wipe()
}

// WrapChecked wraps key with p. It unwraps the result once to check that p can unwrap it.
func WrapChecked(ctx context.Context, p Provider, b Binding, key *Secret) (Wrapped, error) {
	w, err := p.Wrap(ctx, b, key)
	if err != nil {
		return Wrapped{}, fmt.Errorf("wrap key of %s by %s: %w", b, p.Name(), err)
	}
	again, err := p.Unwrap(ctx, b, w)
	if err != nil {
		return Wrapped{}, fmt.Errorf("unwrap the key that was just wrapped: %s: %w", b, err)
	}
	defer again.Wipe()
	if !again.Equal(key) {
		return Wrapped{}, fmt.Errorf("%s: provider %s unwrapped another key than it wrapped: %w", b,
			p.Name(), ErrCorrupt)
	}
	return w, nil
}

// Rewrap unwraps the key in w with from, and wraps it with to. If w already uses the present
// key-encryption key of to, Rewrap returns w and changed is false. w stays valid until the caller
// has stored the result in its place.
func Rewrap(ctx context.Context, from, to Provider, b Binding,
	w Wrapped) (out Wrapped, changed bool, err error) {
	id, err := to.KeyID(ctx)
	if err != nil {
		return w, false, fmt.Errorf("re-wrap key of %s: %w", b, err)
	}
	if w.Provider == to.Name() && w.KeyID == id {
		return w, false, nil
	}
	key, err := from.Unwrap(ctx, b, w)
	if err != nil {
		return w, false, fmt.Errorf("re-wrap key of %s: %w", b, err)
	}
	defer key.Wipe()
	if out, err = WrapChecked(ctx, to, b, key); err != nil {
		return w, false, fmt.Errorf("re-wrap: %w", err)
	}
	return out, true, nil
}

// envelopeMagic is the prefix of every envelope. Its last byte is the version.
const envelopeMagic = "KVK\x01"

// seal returns the envelope, the plaintext to wrap. It is envelopeMagic, then cluster, volume and
// key, each after its length (16 bits, big endian).
func seal(b Binding, key *Secret) (*Secret, error) {
	defer runtime.KeepAlive(key)
	if b.Cluster == "" || b.Volume == "" || key.Len() == 0 {
		return nil, fmt.Errorf("wrap: no cluster, volume or key: %s, key of %d bytes", b, key.Len())
	}
	out, err := allocate(len(envelopeMagic) + 6 + len(b.Cluster) + len(b.Volume) + key.Len())
	if err != nil {
		return nil, err
	}
	p := append(out.Bytes()[:0], envelopeMagic...)
	for _, part := range [][]byte{[]byte(b.Cluster), []byte(b.Volume), key.Bytes()} {
		p = binary.BigEndian.AppendUint16(p, uint16(len(part)))
		p = append(p, part...)
	}
	return out, nil
}

// open parses the unwrapped envelope p, checks its binding and returns the key. It wipes p.
func open(b Binding, p []byte) (*Secret, error) {
	defer clear(p)
	if len(p) < len(envelopeMagic) || string(p[:len(envelopeMagic)]) != envelopeMagic {
		return nil, fmt.Errorf("%w: it does not begin with the magic of a key", ErrCorrupt)
	}

	rest := p[len(envelopeMagic):]
	var parts [3][]byte
	for i := range parts {
		if len(rest) < 2 {
			return nil, fmt.Errorf("%w: it ends too early", ErrCorrupt)
		}
		n := int(binary.BigEndian.Uint16(rest))
		if rest = rest[2:]; len(rest) < n {
			return nil, fmt.Errorf("%w: it ends too early", ErrCorrupt)
		}
		parts[i], rest = rest[:n], rest[n:]
	}

	if len(rest) != 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", ErrCorrupt, len(rest))
	}
	if n := len(parts[2]); n == 0 || n > MaxSize {
		return nil, fmt.Errorf("%w: a key of %d bytes", ErrCorrupt, n)
	}
	if found := (Binding{string(parts[0]), string(parts[1])}); found != b {
		return nil, &BindingError{Expected: b, Found: found}
	}

	return NewSecret(parts[2])
}
