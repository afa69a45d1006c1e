package keyring

import (
	"context"
	"errors"
	"fmt"
)

// Chain is a Provider that wraps with its first provider and unwraps with any of its providers. It
// is used while keys are rewrapped. It must not be empty.
type Chain []Provider

// Name returns the name of the first provider.
func (c Chain) Name() string { return c[0].Name() }

// KeyID returns the key id of the first provider.
func (c Chain) KeyID(ctx context.Context) (string, error) { return c[0].KeyID(ctx) }

// Wrap wraps with the first provider.
func (c Chain) Wrap(ctx context.Context, b Binding, key *Secret) (Wrapped, error) {
	return c[0].Wrap(ctx, b, key)
}

// Unwrap calls the providers whose name is in w, and nested chains, until one returns the key.
func (c Chain) Unwrap(ctx context.Context, b Binding, w Wrapped) (*Secret, error) {
	var errs []error
	for _, p := range c {
		if _, chain := p.(Chain); !chain && p.Name() != w.Provider {
			continue
		}
		key, err := p.Unwrap(ctx, b, w)
		if err == nil {
			return key, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return nil, fmt.Errorf("%s: %w: by provider %s, which is not configured", b, ErrWrongKey,
			w.Provider)
	}
	return nil, errors.Join(errs...)
}
