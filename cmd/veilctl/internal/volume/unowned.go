package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// unownedTick is the interval between checks whether volumes without an owner are gone.
const unownedTick = time.Second

// unowned requests the destruction of volumes without an owner from their nodes, and waits for at
// most long.
func (d *destroyer) unowned(ctx context.Context, names []string,
	long time.Duration) []destroyReport {
	var out []destroyReport
	for _, name := range names {
		r := destroyReport{Volume: name}
		node, err := d.askDestroy(ctx, name)
		if err != nil {
			r.Error = err.Error()
		}
		r.Asked = node
		out = append(out, r)
	}

	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	for i := range out {
		if r := &out[i]; r.Error == "" {
			d.waitDestroyed(ctx, r)
		}
	}
	return out
}

// askDestroy writes a request for the destruction of a volume, and returns the node that must
// destroy it.
func (d *destroyer) askDestroy(ctx context.Context, name string) (node string, err error) {
	o, err := d.store.Object(ctx, name)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return "", errors.New("there is no such volume: see veilctl volume list")
	case err == nil && o.Err != nil:
		err = o.Err
	case err == nil && time.Since(o.Created) < orphanAge:
		err = fmt.Errorf("it is younger than %v, so its PersistentVolume may not exist yet: "+
			"repeat the command later", orphanAge)
	case err == nil && o.Holder == "":
		err = errors.New("its VeilVolume names no node that could destroy it")
	case err == nil:
		err = d.checkThere(ctx, o.Holder)
	}

	if err == nil {
		err = d.store.CheckNoOwner(ctx, name)
	}
	if err == nil {
		err = d.store.AskDestroy(ctx, name)
	}
	return o.Holder, err
}

// checkThere returns an error if the node is gone, because only the node can do the request.
func (d *destroyer) checkThere(ctx context.Context, node string) error {
	if err := d.checkGone(ctx, node); err == nil {
		return fmt.Errorf("node %s is gone: leave --no-owner out", node)
	}
	return nil // The Node exists. If it is not Ready, the request waits for it.
}

// waitDestroyed polls until the VeilVolume is gone, its request is withdrawn, or ctx ends. It
// checks at least once.
func (d *destroyer) waitDestroyed(ctx context.Context, r *destroyReport) {
	tick := time.NewTicker(unownedTick)
	defer tick.Stop()
	for {
		o, err := d.store.Object(context.WithoutCancel(ctx), r.Volume)
		switch {
		case errors.Is(err, volume.ErrNotFound):
			r.KeyDestroyed = true
			return
		case err == nil && o.Err == nil && o.State.Phase != volume.Deleted && !o.Asked.Destroy:
			err := d.store.CheckNoOwner(context.WithoutCancel(ctx), r.Volume)
			if !errors.As(err, new(*kubestore.OwnedError)) {
				err = errors.New("the request was withdrawn: repeat the command")
			}
			r.Error = err.Error()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
