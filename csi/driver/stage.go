package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// NodeStageVolume implements csi.NodeServer: it opens the volume and mounts its file system.
func (d *Driver) NodeStageVolume(ctx context.Context,
	r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	err := checkVolume(r.GetVolumeId(), "staging target path", r.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	c, err := readCapability(r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	unlock, err := d.lock(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.stage(ctx, r, c); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (d *Driver) stage(ctx context.Context, r *csi.NodeStageVolumeRequest, c capability) error {
	if err := d.CheckMounts(filepath.Dir(r.GetStagingTargetPath())); err != nil {
		return fmt.Errorf("stage volume %s: %w", r.GetVolumeId(), err)
	}
	st, set, err := d.own(ctx, r.GetVolumeId())
	if err != nil {
		return err
	}
	if st.Request.Snapshot {
		return invalid("%s is a snapshot: make a volume from it", st.Volume)
	}

	if now, err := d.look(ctx, st.Volume); err == nil {
		all, err := d.Mounts.List()
		if err == nil {
			err = otherUse(st.Volume, all, now.Mapping.Number, c)
		}
		if err == nil {
			err = stagedOnce(st.Volume, all, now.Mapping.Number, r.GetStagingTargetPath())
		}
		if err != nil {
			return err
		}
	}

	p, err := d.kept(st.Request.Parameters)
	if err != nil {
		return err
	}
	if err := checkContext(st, p, r.GetVolumeContext()); err != nil {
		return err
	}

	if err := sameMode(st, p, c); err != nil {
		return err
	}

	keys, giveBack, err := d.needProvider(p, r.GetSecrets(), "node-stage-secret")
	if err != nil {
		return err
	}
	defer giveBack()
	from, err := d.TakeOver(ctx, st.Volume)
	if err == nil && from != st.Writer {
		err = d.fenceIfLost(ctx, st)
	}
	if err != nil {
		return err
	}

	opts := d.openOptions(p, keys)
	opts.TakeOver = from
	switch {
	case st.Content == volume.Made && st.Mode != "":
	case c.block || st.Content == volume.Made:
		// Mark the volume before it is opened. Opening raises the epoch, so a state from a backup
		// without the mark has an older epoch than the disk, and is refused.
		if err := set.MarkMade(ctx, st.Volume, from, c.mode()); err != nil {
			return err
		}
	default:
		if err := d.make(ctx, set, st.Volume, opts, c.kind()); err != nil {
			return err
		}
	}

	o, err := set.Open(ctx, st.Volume, opts)
	if err != nil {
		return err
	}

	if p.Keys == keyring.NameSecret {
		// Only a request to stage brings the present and the previous key together.
		if _, err := set.Rewrap(ctx, st.Volume, keys); err != nil {
			d.Log.Warn("a volume's key could not be rewrapped by the current key of the Secret: "+
				"keep the previous key in the Secret", "volume", st.Volume, "error", err)
		}
	}

	if !c.block {
		err = d.mount(ctx, o, p, c, r.GetStagingTargetPath())
	}

	// A volume with a damaged file system stays open, so that an administrator can examine it.
	if err != nil && !errors.Is(err, mount.ErrDamaged) {
		d.giveBack(ctx, set, o.State, opts.Keys)
	}

	return err
}

// make makes a file system on a volume that was never used. If the volume already has a file
// system, make keeps it: an earlier process made it and died before it updated the state.
func (d *Driver) make(ctx context.Context, set *volume.Set, id string, opts volume.OpenOptions,
	kind mount.FS) error {
	made, err := set.Make(ctx, id, opts, func(device string) error {
		if err := d.Mounts.Make(ctx, device, kind); err != nil {
			return fmt.Errorf("volume %s: %w", id, err)
		}
		return nil
	})
	if made {
		d.Log.Info("file system made", "volume", id, "fs", kind)
	}
	return err
}

// giveBackPatience limits how long giveBack may take.
const giveBackPatience = 30 * time.Second

// giveBack closes an open volume that could not be staged, unless it is mounted, published or held
// open. The kubelet does not unstage a volume whose staging failed, so the kernel would keep the
// key.
func (d *Driver) giveBack(ctx context.Context, set *volume.Set, st volume.State,
	keys keyring.Provider) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackPatience)
	defer cancel()
	err := d.notInUse(ctx, set, st)
	if err == nil {
		_, err = set.Close(ctx, st.Volume, keys)
	}
	if err != nil {
		d.Log.Warn("volume could not be staged and stays open, with its key in the kernel: stage "+
			"it again, or unstage it", "volume", st.Volume, "error", err)
	}
}

// sidecar is the prefix of the entries that the external-provisioner adds to a volume context.
const sidecar = "storage.kubernetes.io/"

// checkContext returns an error if the volume context differs from the parameters in the volume's
// state. The context is in the PersistentVolume, which other programs can write.
func checkContext(st volume.State, p Parameters, given map[string]string) error {
	have := p.Map()
	for name, value := range given {
		if strings.HasPrefix(name, reserved) || strings.HasPrefix(name, sidecar) {
			continue
		}
		if was, ok := have[name]; !ok || was != value {
			return invalid("volume %s: volume attribute %s=%q: it was made with %s", st.Volume,
				name, value, st.Request.Parameters)
		}
	}
	return nil
}

// chain returns a provider that wraps keys with first. It unwraps keys with any configured
// provider, because another one may have wrapped the volume's key. It returns nil if there is no
// provider; first may be nil.
func (d *Driver) chain(first keyring.Provider) keyring.Provider {
	var c keyring.Chain
	if first != nil {
		c = append(c, first)
	}
	for _, name := range []string{keyring.NameKMS, keyring.NameFile} {
		if p := d.Keys[name]; p != nil && (first == nil || name != first.Name()) {
			c = append(c, p)
		}
	}
	if len(c) == 0 {
		return nil
	}
	return c
}

// openOptions returns the options for a volume with these parameters and the provider of the
// request. The options keep the sealing key in memory. Otherwise an operator of the network could
// cut off the key service, and so force a volume to be closed unsealed.
func (d *Driver) openOptions(p Parameters, keys keyring.Provider) volume.OpenOptions {
	return volume.OpenOptions{Keys: d.chain(keys), Tuning: p.Tuning,
		Discard: p.Discard != DiscardNever, KeepSealing: true}
}

// mount mounts the file system of an open volume at target.
func (d *Driver) mount(ctx context.Context, o volume.Opened, p Parameters, c capability,
	target string) error {
	all, err := d.Mounts.List()
	if err != nil {
		return err
	}

	path := o.Mapping.Path
	if m, ok := mount.At(all, target); ok && m.Device == o.Mapping.Number && m.Root && !m.Node {
		return d.growFileSystem(ctx, path, target, m.FS, o.State.Payload)
	} else if ok {
		// The mount belongs to a replaced mapping, or to another program and must not be covered.
		// Unmount fails if it is in use.
		if err := d.Mounts.Unmount(target); err != nil {
			return err
		}
	}

	kind, err := d.content(ctx, o, c)
	if err != nil {
		return err
	}

	if p.Fsck == FsckPreen && len(targets(all, o.Mapping.Number)) == 0 {
		// The check continues after the request is cancelled, because an interrupted repair could
		// do damage.
		if err := d.Mounts.Check(context.WithoutCancel(ctx), path, kind); err != nil {
			return fmt.Errorf("volume %s: %w", o.State.Volume, err)
		}
	}

	options := append(kind.Defaults(), c.options...)
	if p.Discard == DiscardOnline {
		options = append(options, "discard")
	}
	if err := d.Mounts.Mount(path, target, kind, options); err != nil {
		return fmt.Errorf("volume %s: %w", o.State.Volume, err)
	}
	if err := d.growFileSystem(ctx, path, target, kind, o.State.Payload); err != nil {
		return errors.Join(fmt.Errorf("volume %s: %w", o.State.Volume, err),
			d.Mounts.Unmount(target))
	}

	return nil
}

// content returns the kind of file system on an open volume.
func (d *Driver) content(ctx context.Context, o volume.Opened, c capability) (mount.FS, error) {
	id := o.State.Volume
	if o.State.Content != volume.Made {
		return "", fmt.Errorf("volume %s: %w: according to its state, it was never used", id,
			volume.ErrConflict)
	}
	found, err := d.Mounts.Probe(ctx, o.Mapping.Path)
	switch {
	case err != nil:
		return "", fmt.Errorf("volume %s: %w", id, err)
	case found.FS == "":
		return "", &coded{codes.DataLoss,
			fmt.Sprintf("volume %s has been used but holds no known file system (%v), so it is "+
				"not formatted: it was a raw block device, or its disk was changed", id,
				mount.Kinds)}
	case c.fs != "" && c.fs != found.FS:
		return "", failed("volume %s: expected file system %s, found %s: set fsType to %[3]s", id,
			c.fs, found.FS)
	}
	return found.FS, nil
}

// growFileSystem grows a mounted file system to the size of its volume, payload in bytes. A volume
// after an interrupted expansion, or a copy of a smaller source, has a smaller file system.
func (d *Driver) growFileSystem(ctx context.Context, path, target string, kind mount.FS,
	payload int64) error {
	found, err := d.Mounts.Probe(ctx, path)
	if err != nil || found.Size >= payload {
		return err
	}
	return d.Mounts.Grow(context.WithoutCancel(ctx), path, target, kind)
}

// NodeUnstageVolume implements csi.NodeServer: it unmounts the file system and closes the volume.
// It does not wait for another node.
func (d *Driver) NodeUnstageVolume(ctx context.Context,
	r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	unlock, err := d.lockAt(r.GetVolumeId(), "staging target path", r.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.unstage(ctx, r.GetVolumeId(), r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// unstage unmounts the volume at target and closes it. It does not check which node has the volume,
// so that this node's mapping is also closed after a take-over.
func (d *Driver) unstage(ctx context.Context, id, target string) error {
	st, err := d.anySet.Get(ctx, id)
	if errors.Is(err, volume.ErrNotFound) {
		return d.unstageLost(ctx, id, target)
	}
	if err != nil {
		return err
	}
	set, err := d.set(st)
	if err != nil {
		return err
	}
	if err := d.notInUse(ctx, set, st, target); err != nil {
		return err
	}

	if err := d.Mounts.Unmount(target); err != nil {
		return fmt.Errorf("volume %s: %w: see which processes have files open there", id, err)
	}
	p, err := d.kept(st.Request.Parameters)
	if err != nil {
		return err
	}

	// Close seals the volume with the sealing key that Open kept in memory. A process that did not
	// open the volume unwraps the key with the provider, and does not release the volume until the
	// provider answers. A request to unstage brings no secrets. So if the key needs a secret, such
	// a process closes the volume unsealed, and Close logs that.
	keys, _, err := d.provider(p, nil)
	if err != nil {
		return err
	}

	_, err = set.Close(ctx, id, d.chain(keys))
	return d.heldBy(ctx, set, id, err)
}

// unstageLost unmounts a volume that has no state, for instance because the API server was restored
// from a backup that is older than the volume. It closes the mapping that was mounted at target,
// unless the mapping is in use elsewhere.
func (d *Driver) unstageLost(ctx context.Context, id, target string) error {
	all, err := d.Mounts.List()
	if err != nil {
		return err
	}
	m, mounted := mount.At(all, target)
	if err := d.Mounts.Unmount(target); err != nil || !mounted {
		return err
	}
	names, err := d.anySet.Engine.List(ctx, dmcrypt.NamePrefixAll)
	if err != nil {
		return err
	}
	for _, name := range names {
		if found, err := d.anySet.Engine.Lookup(ctx, name); err == nil && found.Number == m.Device {
			return d.closeOrphans(ctx, id, []string{name})
		}
	}
	return nil
}
