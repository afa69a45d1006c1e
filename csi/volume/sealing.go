package volume

import (
	"context"

	"github.com/kubeveil/kubeveil/csi/crypt"
)

// keep stores the sealing key of the volume until the volume is closed, if opts.KeepSealing is set.
// It copies keys, which the caller still wipes. Without a kept key Close needs the provider.
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

// keepAgain calls keep for a volume that an earlier process opened. It unwraps the key first.
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

// sealingKeys returns the keys that seal the record: the kept key, or else the keys that the
// operation's provider unwraps. The caller calls done, which wipes unwrapped keys.
func (o *op) sealingKeys(ctx context.Context) (keys *crypt.Keys, done func(), err error) {
	if keys := o.kept(); keys != nil {
		return keys, func() {}, nil
	}
	keys, err = o.deriveKeys(ctx)
	return keys, keys.Wipe, err
}
