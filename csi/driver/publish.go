package driver

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/mount"
)

// NodePublishVolume implements csi.NodeServer: it bind-mounts the staged file system, or the raw
// device. The bind mount of a raw device is always writable; the kubelet enforces read-only with
// the container's device rules.
func (d *Driver) NodePublishVolume(ctx context.Context,
	r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := checkVolume(r.GetVolumeId(), "target path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	c, err := readCapability(r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if err := checkTarget("staging target path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	unlock, err := d.lock(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer unlock()
	c.readOnly = c.readOnly || r.GetReadonly()
	if err := d.publish(ctx, r.GetVolumeId(), r.GetStagingTargetPath(), r.GetTargetPath(),
		c); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// isPublished reports whether the volume is already at target as requested. It reads the cache,
// because a published volume needs no change. It may return false for a published volume.
func (d *Driver) isPublished(ctx context.Context, id, target string, c capability) bool {
	o, err := d.anySet.FindIn(ctx, d.reader(), id)
	if err != nil {
		return false
	}
	all, err := d.Mounts.List()
	if err != nil || otherUse(id, all, o.Mapping.Number, c) != nil {
		return false
	}
	m, ok := mount.At(all, target)
	return ok && m.Device == o.Mapping.Number && m.Node == c.block && m.ReadOnly == c.readOnly
}

func (d *Driver) publish(ctx context.Context, id, staging, target string, c capability) error {
	if d.isPublished(ctx, id, target, c) {
		// The request is a repetition, for instance by a restarted kubelet. Do not check other
		// mounts: the kubelet has since bind-mounted folders of the volume for the pod's subPaths.
		return nil
	}

	o, _, err := d.find(ctx, id)
	if err != nil {
		return err
	}
	all, err := d.Mounts.List()
	if err != nil {
		return err
	}
	device, source := o.Mapping.Number, o.Mapping.Path
	if err := otherUse(id, all, device, c); err != nil {
		return err
	}

	if !c.block {
		source = staging
		if m, ok := mount.At(all, staging); !ok || m.Node || m.Device != device {
			return failed("volume %s is not mounted at %s: stage it first", id, staging)
		}
	}

	m, taken := mount.At(all, target)
	switch ours := taken && m.Device == device && m.Node == c.block; {
	case ours && m.ReadOnly == c.readOnly:
		return nil
	case ours:
		return &coded{codes.AlreadyExists, "volume " + id + " is published at " + target +
			" with another read-only flag: unpublish it first"}
	}

	if others := otherPods(targets(all, device, staging, target), target, c); c.single &&
		len(others) > 0 {
		return failed("volume %s is ReadWriteOncePod, and published at %s", id, others[0])
	}

	if taken {
		// The mount is of another device, such as a replaced mapping. Unmount fails if in use.
		if err := d.Mounts.Unmount(target); err != nil {
			return err
		}
	}

	if err := d.CheckMounts(filepath.Dir(target)); err != nil {
		return fmt.Errorf("publish volume %s: %w", id, err)
	}
	return d.Mounts.Bind(source, target, c.readOnly)
}

// otherPods returns others without the kubelet's second bind mount of the same pod's device. The
// kubelet makes that mount in another folder, under the same name, the pod's uid. It may publish
// the device again later.
func otherPods(others []string, target string, c capability) []string {
	return slices.DeleteFunc(others, func(at string) bool {
		return c.block && filepath.Base(at) == filepath.Base(target)
	})
}

// NodeUnpublishVolume implements csi.NodeServer. It does not look the volume up. It unmounts
// everything at the path.
func (d *Driver) NodeUnpublishVolume(_ context.Context,
	r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	unlock, err := d.lockAt(r.GetVolumeId(), "target path", r.GetTargetPath())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.Mounts.Unbind(r.GetTargetPath()); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
