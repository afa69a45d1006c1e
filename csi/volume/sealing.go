package volume

import (
	"context"

	"github.com/kubeveil/kubeveil/csi/crypt"
)

// keep stores the sealing key of the volume until it is closed, if opts request it. The caller
// still owns keys. Without a kept key Close needs the provider.
func (o *op) keep(keys *crypt.Keys, opts OpenOptions) {
	if !opts.KeepSealing {
		return
	}
	sealing, err := keys.Sealing()
	if err != nil {
		o.log.Warn("key that seals the volume cannot be kept: closing it will need its provider",
			"error", err)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sealing[o.state.Volume].Wipe()
	o.sealing[o.state.Volume] = sealing
}

// keepAgain is keep for a volume that an earlier process opened.
func (o *op) keepAgain(ctx context.Context, opts OpenOptions) {
	if !opts.KeepSealing || o.kept() != nil {
		return
	}
	keys, err := o.deriveKeys(ctx)
	if err != nil {
		o.log.Warn("key that seals the volume cannot be kept: closing it will need its provider",
			"error", err)
		return
	}
	defer keys.Wipe()
	o.keep(keys, opts)
}

// kept returns the kept sealing key, or nil. Only the holder of the volume lock may use it; it must
// not wipe it.
func (o *op) kept() *crypt.Keys {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sealing[o.state.Volume]
}

// drop wipes the kept sealing key.
func (o *op) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sealing[o.state.Volume].Wipe()
	delete(o.sealing, o.state.Volume)
}

// sealingKeys returns the keys that seal the record: the kept one, or else those that the
// operation's provider unwraps. done wipes the keys that belong to the caller.
func (o *op) sealingKeys(ctx context.Context) (keys *crypt.Keys, done func(), err error) {
	if keys := o.kept(); keys != nil {
		return keys, func() {}, nil
	}
	keys, err = o.deriveKeys(ctx)
	return keys, keys.Wipe, err
}
