package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// NodeExpandVolume implements csi.NodeServer: it expands the backing, record, mapping and file
// system of a volume in use.
func (d *Driver) NodeExpandVolume(ctx context.Context,
	r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	id := r.GetVolumeId()
	if id == "" {
		return nil, invalid("no volume id")
	}
	if r.GetVolumePath() == "" {
		return nil, invalid("no volume path")
	}

	unlock, err := d.lock(id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	o, p, err := d.find(ctx, id)
	if err != nil {
		return nil, err
	}
	m, err := d.volumeAt(o, r.GetVolumePath(), r.GetStagingTargetPath())
	if err != nil && r.GetVolumeCapability().GetBlock() == nil {
		return nil, err
	}

	// The kubelet uses several paths for a raw device, so a raw device may be missing at the given
	// ones.
	isFS := err == nil && !m.Node
	payload := o.State.Payload
	if asked := r.GetCapacityRange(); asked != nil {
		required := asked.GetRequiredBytes()
		if required == 0 {
			required = payload // Keep the size. sizeOf would return the default for new volumes.
		}
		if payload, err = sizeOf(&csi.CapacityRange{RequiredBytes: required,
			LimitBytes: asked.GetLimitBytes()}, payload); err != nil {
			return nil, err
		}
	}

	keys, giveBack, err := d.provider(p, r.GetSecrets())
	if err == nil && keys == nil && payload > o.State.Payload {
		_, _, err = d.needProvider(p, nil, "node-expand-secret")
	}

	if err != nil {
		return nil, err
	}
	defer giveBack()
	set, err := d.set(o.State)
	if err != nil {
		return nil, err
	}
	st, err := set.Expand(ctx, id, payload, d.openOptions(p, keys))
	if err != nil {
		return nil, err
	}

	if isFS {
		err = d.growFileSystem(ctx, o.Mapping.Path, m.Target, m.FS, st.Payload)
	}
	if err != nil {
		return nil, err
	}

	return &csi.NodeExpandVolumeResponse{CapacityBytes: st.Payload}, nil
}

// volumeAt returns the mount of the volume at the first of paths that has such a mount.
func (d *Driver) volumeAt(o volume.Opened, paths ...string) (mount.Mount, error) {
	all, err := d.Mounts.List()
	if err != nil {
		return mount.Mount{}, err
	}
	for _, path := range paths {
		if m, ok := mount.At(all, path); ok && m.Device == o.Mapping.Number {
			return m, nil
		}
	}
	return mount.Mount{}, notFound("volume %s is not at %s", o.State.Volume, paths[0])
}
