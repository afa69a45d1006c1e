package keyring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of providers. What is retried and what is not depends on which it is.
var (
	// ErrUnavailable matches when the key service did not answer, or did not do what it was asked:
	// try again.
	ErrUnavailable = errors.New("key service unavailable")
	// ErrWrongKey matches when the key was wrapped by a key-encryption key, or a provider, other
	// than those at hand.
	ErrWrongKey = errors.New("wrapped by another key")
	// ErrCorrupt matches when what was wrapped does not authenticate, or is nothing that this
	// package wrapped.
	ErrCorrupt = errors.New("wrapped key is damaged")
)

// Binding is what a wrapped key is for. Both are compared after unwrapping.
type Binding struct {
	// Cluster is the id of the cluster: the UID of the namespace kube-system.
	Cluster string
	// Volume is the CSI volume id.
	Volume string
}

func (b Binding) String() string {
	return fmt.Sprintf("volume %q of cluster %q", b.Volume, b.Cluster)
}

// BindingError is a wrapped key that is another volume's, or another cluster's.
type BindingError struct{ Expected, Found Binding }

func (e *BindingError) Error() string {
	return fmt.Sprintf("wrapped key is of another volume: expected %s, found %s", e.Expected,
		e.Found)
}

// Wrapped is a key as it may be kept where others read it.
type Wrapped struct {
	// Provider is the name of the provider that wrapped it.
	Provider string `json:"provider"`
	// KeyID names the key-encryption key, as the provider does.
	KeyID string `json:"keyID"`
	// Blob is the ciphertext.
	Blob []byte `json:"blob"`
	// Annotations are what a KMS plugin wants to see again, by name.
	Annotations map[string][]byte `json:"annotations,omitempty"`
}

// IsZero reports whether w is no wrapped key.
func (w Wrapped) IsZero() bool { return w.Provider == "" && len(w.Blob) == 0 }

// Provider wraps keys by a key-encryption key that it holds or can reach. Its methods may be called
// from several goroutines; the caller wipes secrets that it is given.
type Provider interface {
	// Name is the provider's name: kms, secret or file.
	Name() string
	// KeyID is the name of the key-encryption key by which Wrap would wrap now.
	KeyID(ctx context.Context) (string, error)
	// Wrap wraps key for b.
	Wrap(ctx context.Context, b Binding, key *Secret) (Wrapped, error)
	// Unwrap returns the key that was wrapped for b; a *BindingError when it was wrapped for
	// something else.
	Unwrap(ctx context.Context, b Binding, w Wrapped) (*Secret, error)
}

// Wiper is a Provider that holds keys itself. Wipe overwrites them; the provider must not be used
// meanwhile, and wraps and unwraps nothing afterwards.
type Wiper interface {
	Provider
	Wipe()
}

// WrapChecked wraps key by p and unwraps it again, so that what it returns is known to open.
func WrapChecked(ctx context.Context, p Provider, b Binding, key *Secret) (Wrapped, error) {
	w, err := p.Wrap(ctx, b, key)
	if err != nil {
		return Wrapped{}, fmt.Errorf("wrap key of %s by %s: %w", b, p.Name(), err)
	}
	again, err := p.Unwrap(ctx, b, w)
	if err != nil {
		return Wrapped{}, fmt.Errorf("unwrap what was just wrapped: %s: %w", b, err)
	}
	defer again.Wipe()
	if !again.Equal(key) {
		return Wrapped{}, fmt.Errorf("%s: provider %s gave another key than it was given: %w", b,
			p.Name(), ErrCorrupt)
	}
	return w, nil
}

// Rewrap wraps by to the key that from has wrapped. When w is already wrapped by the present key of
// to, it is returned as it is, and changed is false. w stays valid: the caller replaces it when the
// new one is stored.
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

// envelopeMagic begins what is wrapped; its last byte is the version.
const envelopeMagic = "KVK\x01"

// seal returns what is wrapped: magic, then cluster, volume and key, each after its length (16
// bits, big endian).
func seal(b Binding, key *Secret) (*Secret, error) {
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

// open takes the key out of what was wrapped and compares what it is for. It wipes p.
func open(b Binding, p []byte) (*Secret, error) {
	defer clear(p)
	if len(p) < len(envelopeMagic) || string(p[:len(envelopeMagic)]) != envelopeMagic {
		return nil, fmt.Errorf("%w: it does not begin as one of ours", ErrCorrupt)
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
