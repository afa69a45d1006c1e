package driver

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context,
	*csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
	} {
		r.Capabilities = append(r.Capabilities,
			&csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
				Rpc: &csi.NodeServiceCapability_RPC{Type: t},
			}})
	}
	return r, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context,
	*csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.Node, AccessibleTopology: topology(d.Node)}, nil
}

// checkTarget refuses a path that is empty, relative or not clean. what names the path in the
// error.
func checkTarget(what, path string) error {
	if path == "" {
		return invalid("no %s", what)
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return invalid("%s %q: want an absolute path without links", what, path)
	}
	return nil
}

// checkVolume refuses a request without a volume, or with a path that checkTarget refuses.
func checkVolume(id, what, path string) error {
	if id == "" {
		return invalid("no volume id")
	}
	return checkTarget(what, path)
}

// lockAt calls checkVolume, then locks the volume.
func (d *Driver) lockAt(id, what, path string) (unlock func(), err error) {
	if err := checkVolume(id, what, path); err != nil {
		return nil, err
	}
	return d.lock(id)
}

// look returns the mapping of a volume. It finds the volume in the cache, or else in the store. The
// state may be stale; code that changes a volume calls find.
func (d *Driver) look(ctx context.Context, id string) (volume.Opened, error) {
	if o, err := d.anySet.FindIn(ctx, d.reader(), id); err == nil || d.Cache == nil {
		return o, err
	}
	return d.anySet.Find(ctx, id)
}

// find returns the mapping and parameters of a volume that is staged here. It reads the store.
func (d *Driver) find(ctx context.Context, id string) (volume.Opened, Parameters, error) {
	o, err := d.anySet.Find(ctx, id)
	if errors.Is(err, dmcrypt.ErrNoMapping) {
		if err = d.fenceIfLost(ctx, o.State); err == nil {
			err = failed("volume %s is not staged on node %s: stage it first", id, d.Node)
		}
	}
	if err != nil {
		return o, Parameters{}, err
	}
	p, err := d.kept(o.State.Request.Parameters)
	return o, p, err
}

// fenceIfLost fences this node's mappings of a volume that another node has, and returns the
// *volume.BusyError. It returns nil if no other node has the volume. CSI calls use it so that a
// take-over is noticed at the next call. The kubelet calls NodeGetVolumeStats every minute.
func (d *Driver) fenceIfLost(ctx context.Context, st volume.State) error {
	busy := st.Busy(d.Node)
	if busy == nil {
		return nil
	}
	set, err := d.set(st)
	if err == nil {
		err = set.FenceByState(ctx, st.Volume)
	}
	if err != nil {
		return err
	}
	return busy
}

// mountsOf returns all mounts and the device number of a volume. It returns no mounts if the volume
// is not open.
func (d *Driver) mountsOf(ctx context.Context, set *volume.Set, id string) (all []mount.Mount,
	number uint64, err error) {
	o, err := set.Find(ctx, id)
	if errors.Is(err, dmcrypt.ErrNoMapping) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	all, err = d.Mounts.List()
	return all, o.Mapping.Number, err
}

// notInUse returns an error if the volume is mounted or published at any path but those of except.
// The error names the paths.
func (d *Driver) notInUse(ctx context.Context, set *volume.Set, st volume.State,
	except ...string) error {
	all, number, err := d.mountsOf(ctx, set, st.Volume)
	if err != nil {
		return err
	}
	if at := targets(all, number, except...); len(at) > 0 {
		return failed("volume %s is in use: %s", st.Volume, places(at))
	}
	return nil
}

// otherUse returns an error if the volume is in use in the other mode: as a file system if c
// requests the raw device, or as a raw device if c requests a file system.
func otherUse(id string, all []mount.Mount, device uint64, c capability) error {
	for _, m := range all {
		if m.Device == device && m.Node != c.block {
			ways := map[bool]string{true: "a block device", false: "a file system"}
			return failed("volume %s is in use as %s at %s, and is requested as %s: do two "+
				"PersistentVolumes have its handle? "+
				"End what uses it first", id, ways[m.Node], m.Target, ways[c.block])
		}
	}
	return nil
}

// targets returns the paths at which a device is mounted or bind-mounted, without those of except.
func targets(all []mount.Mount, device uint64, except ...string) []string {
	var at []string
	for _, m := range all {
		if m.Device == device && !slices.Contains(except, m.Target) {
			at = append(at, m.Target)
		}
	}
	return at
}
