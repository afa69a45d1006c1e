package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// Notice is an event about a volume that its users should see, although no CSI call returns it.
type Notice struct {
	// Volume is the id of the volume. If that is unknown, it is the name of a mapping; see
	// VolumeOf.
	Volume string
	// Reason is one word. Message is a sentence.
	Reason, Message string
	// Refused is the kind of refusal if upkeep met a refused disk. It is empty for any other
	// notice.
	Refused crypt.Kind
}

// Reasons of notices. The reason of a refused disk is the kind of the refusal.
const (
	reasonFenced   = "Fenced"
	reasonUnsealed = "Unsealed"
	reasonOrphan   = "VeilVolumeMissing"
)

// Notify sets the receiver of notices. Call it before the driver serves. receive must not block and
// must not use the driver.
func (d *Driver) Notify(receive func(Notice)) { d.notify = receive }

func (d *Driver) notice(n Notice) {
	if d.notify != nil {
		d.notify(n)
	}
}

// Happened counts an event of a volume, and sends a notice of it. The driver's Sets call it.
func (d *Driver) Happened(id string, h volume.Happening) {
	switch h {
	case volume.Fenced:
		d.fenced.Add(1)
		d.notice(Notice{Volume: id, Reason: reasonFenced, Message: fmt.Sprintf("another node has "+
			"taken this volume over: node %s can no longer write to it, and data that it wrote "+
			"since the takeover is lost", d.Node)})
	case volume.Unsealed:
		d.unsealed.Add(1)
		d.notice(Notice{Volume: id, Reason: reasonUnsealed, Message: fmt.Sprintf("node %s closed "+
			"this volume without its key: until the volume is opened again, an older image of its "+
			"disk from the time when it was open is accepted", d.Node)})
	}
}

// orphaned sends a notice about a mapping that is in use and whose volume has no state. An empty id
// means that the volume is unknown.
func (d *Driver) orphaned(id string) {
	if id == "" {
		return // Without the volume, its claim cannot be found.
	}
	d.notice(Notice{Volume: id, Reason: reasonOrphan, Message: fmt.Sprintf("this volume is in use "+
		"on node %s, but its VeilVolume was deleted: restore the VeilVolume, or save the data and "+
		"end the pods", d.Node)})
}

// refused sends a notice if err, the result of upkeep for a volume, refuses its disk. It sends one
// notice until the kind of refusal changes or an upkeep finds none. err may be nil.
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

// VolumeOf returns the id of a notice's volume. If name is the name of a mapping, it returns the
// mapping's volume, otherwise name.
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
