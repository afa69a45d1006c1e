package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// NodeGetVolumeStats implements csi.NodeServer.
func (d *Driver) NodeGetVolumeStats(ctx context.Context,
	r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, invalid("no volume id")
	}
	if r.GetVolumePath() == "" {
		return nil, invalid("no volume path")
	}

	o, err := d.look(ctx, r.GetVolumeId())
	if errors.Is(err, dmcrypt.ErrNoMapping) {
		if err = d.fenceIfLost(ctx, o.State); err == nil {
			err = notFound("volume %s is not staged on node %s", r.GetVolumeId(), d.Node)
		}
	}

	if err != nil {
		return nil, err
	}
	if _, err := d.volumeAt(o, r.GetVolumePath()); err != nil {
		return nil, err
	}

	u, err := d.usage(ctx, o, r.GetVolumePath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, notFound("volume %s is not at %s any more", r.GetVolumeId(), r.GetVolumePath())
	case errors.Is(err, errHangs):
		return nil, fmt.Errorf("statistics of volume %s at %s: %w", r.GetVolumeId(),
			r.GetVolumePath(), err)
	case err != nil:
		return nil, err
	}

	bytes := &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: u.Total}
	if u.Node {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{bytes}}, nil
	}

	bytes.Used, bytes.Available = u.Used, u.Free
	inodes := &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: u.Inodes, Used: u.InodesUsed,
		Available: u.InodesFree}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{bytes, inodes}}, nil
}

// probePatience is how long a disk may take to answer before its health is bad.
const probePatience = 10 * time.Second

// Reasons in a volume's health.
const (
	reasonNotMapped = "NoMapping"
	reasonTaken     = "TakenOver"
	reasonSuspended = "MappingSuspended"
	reasonDiskDead  = "DiskDoesNotAnswer"
	reasonReadOnly  = "FileSystemReadOnly"
)

// NodeGetVolumeHealth implements csi.NodeServer: it reports whether the volume's disk answers and
// its file system accepts writes.
func (d *Driver) NodeGetVolumeHealth(ctx context.Context,
	r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, invalid("no volume id")
	}

	h := &csi.VolumeHealth{VolumeId: r.GetVolumeId()}
	found := func(what csi.VolumeHealthErrorType, reason, format string,
		args ...any) (*csi.NodeGetVolumeHealthResponse, error) {
		h.HealthStatuses = append(h.HealthStatuses,
			&csi.VolumeHealth_VolumeHealthEntry{Status: what, Reason: reason,
				Message: fmt.Sprintf(format, args...)})
		return &csi.NodeGetVolumeHealthResponse{VolumeHealth: h}, nil
	}
	o, err := d.look(ctx, r.GetVolumeId())
	if errors.Is(err, dmcrypt.ErrNoMapping) {
		if taken := d.fenceIfLost(ctx, o.State); taken != nil {
			err = taken
		}
	}

	switch {
	case errors.As(err, new(*volume.BusyError)):
		return found(csi.VolumeHealthErrorType_INACCESSIBLE, reasonTaken, "%v", err)
	case errors.Is(err, dmcrypt.ErrNoMapping):
		return found(csi.VolumeHealthErrorType_INACCESSIBLE, reasonNotMapped,
			"the volume is not open on node %s", d.Node)
	case err != nil:
		return nil, err
	case o.Mapping.Suspended:
		return found(csi.VolumeHealthErrorType_DEGRADED, reasonSuspended,
			"requests wait while the volume is copied")
	}

	if err := d.probe(ctx, o); err != nil {
		return found(csi.VolumeHealthErrorType_INACCESSIBLE, reasonDiskDead,
			"the disk of the volume cannot be read: %v", err)
	}
	all, err := d.Mounts.List()
	if err != nil {
		return nil, err
	}

	for _, at := range targets(all, o.Mapping.Number) {
		m, _ := mount.At(all, at)
		if m.Stopped {
			return found(csi.VolumeHealthErrorType_DEGRADED, reasonReadOnly,
				"the file system at %s refuses writes after an error; see the kernel's log "+
					"of the node", at)
		}
	}

	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: h}, nil
}

// errHangs is the error of a disk that did not answer within probePatience.
var errHangs = fmt.Errorf("its disk does not answer: %w", context.DeadlineExceeded)

// probe reads from the mapping, and returns an error if its disk does not answer.
func (d *Driver) probe(ctx context.Context, o volume.Opened) error {
	name, lasting := o.Mapping.Name, context.WithoutCancel(ctx)
	_, err := d.read(ctx, name, func() (any, error) {
		return nil, d.anySet.Engine.Probe(lasting, name)
	})
	return err
}

// usage returns the space that the volume mounted at path uses. The mapping's name identifies the
// query, because it is never reused for another volume.
func (d *Driver) usage(ctx context.Context, o volume.Opened, path string) (mount.Usage, error) {
	u, err := d.read(ctx, o.Mapping.Name+" at "+path,
		func() (any, error) { return d.Mounts.Usage(path) })
	if err != nil {
		return mount.Usage{}, err
	}
	return u.(mount.Usage), nil
}

// read queries a disk with do, and returns the answer. Concurrent callers with the same question
// share one query. If the disk hangs, read returns errHangs, and the query blocks one thread until
// the disk answers.
func (d *Driver) read(ctx context.Context, question string, do func() (any, error)) (any, error) {
	answer := d.reads.DoChan(question, do)
	patience := time.NewTimer(probePatience)
	defer patience.Stop()
	select {
	case a := <-answer:
		return a.Val, a.Err
	case <-patience.C:
		return nil, errHangs
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
