package volume

import (
	"context"

	"github.com/kubeveil/kubeveil/csi/crypt"
)

// keep holds the key that seals the volume's record until it is closed, where opts ask for it. keys
// stay the caller's. Without, the volume is closed all the same, and not sealed.
func (o *op) keep(keys *crypt.Keys, opts OpenOptions) {
	if !opts.KeepSealing {
		return
	}
	sealing, err := keys.Sealing()
	if err != nil {
		o.log.Warn("key that seals the volume cannot be kept: it will be closed without sealing it",
			"error", err)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sealing[o.Volume].Wipe()
	o.sealing[o.Volume] = sealing
}

// keepAgain is keep for a volume that a former process opened, whose memory is gone.
func (o *op) keepAgain(ctx context.Context, opts OpenOptions) {
	if !opts.KeepSealing || o.kept() != nil {
		return
	}
	keys, err := o.deriveKeys(ctx)
	if err != nil {
		o.log.Warn("key that seals the volume cannot be kept: it will be closed without sealing it",
			"error", err)
		return
	}
	defer keys.Wipe()
	o.keep(keys, opts)
}

// kept returns the key that was kept, nil when none was. It is whoever has the volume locked's to
// use, and not to wipe.
func (o *op) kept() *crypt.Keys {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sealing[o.Volume]
}

// drop wipes the key that was kept.
func (o *op) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sealing[o.Volume].Wipe()
	delete(o.sealing, o.Volume)
}

// sealingKeys returns the keys by which the record is sealed: the one that was kept, else what the
// provider of this operation unwraps. done wipes what is the caller's.
func (o *op) sealingKeys(ctx context.Context) (keys *crypt.Keys, done func(), err error) {
	if keys := o.kept(); keys != nil {
		return keys, func() {}, nil
	}
	keys, err = o.deriveKeys(ctx)
	return keys, keys.Wipe, err
}
