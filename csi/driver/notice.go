package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// Notice is an event of a volume that its users should see, and that no call returns to them.
type Notice struct {
	// Volume is the volume, or a mapping whose volume is not known: see VolumeOf.
	Volume string
	// Reason is one word, Message a sentence.
	Reason, Message string
	// Refused is the kind of a refused disk that upkeep met; empty for any other notice.
	Refused crypt.Kind
}

// Reasons of notices. The reason of a refused disk is the kind of the refusal.
const (
	reasonFenced   = "Fenced"
	reasonUnsealed = "Unsealed"
	reasonOrphan   = "VeilVolumeMissing"
)

// Notify sets the receiver of notices. Call it before anything is served. The function must not
// block and must not use the driver.
func (d *Driver) Notify(receive func(Notice)) { d.notify = receive }

func (d *Driver) notice(n Notice) {
	if d.notify != nil {
		d.notify(n)
	}
}

// Happened counts what happened to a volume, and notifies of it. The Sets of the driver call it.
func (d *Driver) Happened(id string, h volume.Happening) {
	switch h {
	case volume.Fenced:
		d.fenced.Add(1)
		d.notice(Notice{Volume: id, Reason: reasonFenced, Message: fmt.Sprintf("another node has "+
			"taken this volume over: node %s no longer writes to it, and what it wrote since is "+
			"lost", d.Node)})
	case volume.Unsealed:
		d.unsealed.Add(1)
		d.notice(Notice{Volume: id, Reason: reasonUnsealed, Message: fmt.Sprintf("node %s closed "+
			"this volume without its key: an image of the disk from while it was open will be "+
			"accepted", d.Node)})
	}
}

// orphaned notifies of a mapping in use whose volume has no state.
func (d *Driver) orphaned(id string) {
	if id == "" {
		return // The volume has no claim to find.
	}
	d.notice(Notice{Volume: id, Reason: reasonOrphan, Message: fmt.Sprintf("this volume is in use "+
		"on node %s, and its VeilVolume is gone: save its data, then end its pods, or put the "+
		"VeilVolume back", d.Node)})
}

// refused notifies when upkeep meets a refusal of the volume's disk, once until upkeep meets
// another or none. err may be nil.
func (d *Driver) refused(id string, err error) {
	var r *crypt.RefusedError
	found := errors.As(err, &r)

	d.mu.Lock()
	known, ok := d.refusals[id]
	if found {
		d.refusals[id] = r.Kind
	} else {
		delete(d.refusals, id)
	}
	d.mu.Unlock()

	if found && !(ok && known == r.Kind) {
		d.notice(Notice{Volume: id, Reason: r.Kind.Name(), Message: err.Error(), Refused: r.Kind})
	}
}

// VolumeOf returns the volume of a notice: name itself, or the volume of the mapping of that name.
func (d *Driver) VolumeOf(ctx context.Context, name string) (string, error) {
	if _, _, ok := dmcrypt.VolumeOf(name); !ok {
		return name, nil
	}
	if id := d.strays.volume(name); id != "" {
		return id, nil
	}
	states, err := d.reader().List(ctx)
	for _, st := range states {
		if _, ok := dmcrypt.EpochOf(st.UUID, name); ok {
			return st.Volume, nil
		}
	}
	return "", errors.Join(fmt.Errorf("mapping %s: %w", name, volume.ErrNotFound), err)
}
