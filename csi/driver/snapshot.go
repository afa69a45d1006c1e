package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// CreateSnapshot implements csi.ControllerServer. A snapshot is a copy of the volume's present
// content. It is never opened.
func (d *Driver) CreateSnapshot(ctx context.Context,
	r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if r.GetName() == "" {
		return nil, invalid("no name")
	}
	if r.GetSourceVolumeId() == "" {
		return nil, invalid("no source volume id")
	}

	for name := range r.GetParameters() {
		if !strings.HasPrefix(name, reserved) {
			return nil, invalid("unknown parameter %q: a VolumeSnapshotClass has none", name)
		}
	}

	unlock, err := d.lock(r.GetName())
	if err != nil {
		return nil, err
	}
	defer unlock()
	src := r.GetSourceVolumeId()
	st, set, err := d.own(ctx, src)
	if errors.Is(err, volume.ErrNotFound) {
		st, set, err = d.begun(ctx, r.GetName(), src, err)
	}
	if err != nil {
		return nil, err
	}

	if st.Volume == src && st.Request.Snapshot {
		return nil, invalid("%s is a snapshot itself", src)
	}
	p, err := d.kept(st.Request.Parameters)
	if err != nil {
		return nil, err
	}

	keys, giveBack, err := d.needProvider(p, r.GetSecrets(), "snapshotter-secret")
	if err != nil {
		return nil, err
	}
	defer giveBack()
	request := volume.Request{Node: d.Node, Backend: st.Request.Backend,
		Parameters: st.Request.Parameters}
	snap, err := d.copy(ctx, set, r.GetName(), src,
		volume.CopyOptions{Snapshot: true, Request: request, Keys: d.chain(keys)})
	if err != nil {
		return nil, err
	}

	return &csi.CreateSnapshotResponse{Snapshot: snapshot(snap)}, nil
}

// errEnding is the error of a copy that the end of the driver interrupts.
var errEnding = errors.New("the driver ends: send the request again")

// resumeEvery is the interval of attempts to resume a source that stayed suspended after its copy.
const resumeEvery = 5 * time.Second

// copy locks the volume src and copies it to dst. The copy continues if the request times out. A
// repeated request returns volume.ErrInProgress until the copy ends. End abandons it.
//
// If the source cannot be resumed, copy keeps trying, regardless of the result of the copy: the
// source's pod is blocked, and no other operation on the volume can succeed. If the process ends
// first, the next one resumes the source (Recover).
func (d *Driver) copy(ctx context.Context, set *volume.Set, dst, src string,
	opts volume.CopyOptions) (volume.State, error) {
	unlock, err := d.lock(src)
	if err != nil {
		return volume.State{}, err
	}
	defer unlock()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	go func() {
		select {
		case <-d.ending:
			cancel(errEnding)
		case <-ctx.Done():
		}
	}()
	d.flush(ctx, src)
	st, err := set.Copy(ctx, dst, src, opts)
	if errors.Is(err, volume.ErrSuspended) {
		d.Until(ctx, resumeEvery, "resume a volume after its copy",
			func(ctx context.Context) error { return set.ResumeVolume(ctx, src) })
	}
	return st, err
}

// flush writes the dirty pages of the volume's file system to the disk before the mapping is
// suspended, so that the suspension is short. The copy has the same content without it.
func (d *Driver) flush(ctx context.Context, id string) {
	o, err := d.look(ctx, id)
	if err != nil {
		return // The volume is not open here.
	}
	all, err := d.Mounts.List()
	for _, at := range targets(all, o.Mapping.Number) {
		if m, _ := mount.At(all, at); !m.Node {
			err = d.Mounts.Flush(at)
			break
		}
	}
	if err != nil {
		d.Log.Warn("cannot flush file system before copy; suspension may take longer",
			"volume", id, "error", err)
	}
}

// begun returns the copy name if it no longer needs its source src, which is missing. So a repeated
// request succeeds, whose first result the caller did not receive. Otherwise begun returns gone,
// the error of the missing source.
func (d *Driver) begun(ctx context.Context, name, src string,
	gone error) (volume.State, *volume.Set, error) {
	st, set, err := d.own(ctx, name)
	if errors.Is(err, volume.ErrNotFound) || err == nil && (st.Request.Source != src ||
		st.Phase == volume.New || st.Phase == volume.Deleted) {
		err = gone
	}
	return st, set, err
}

// snapshot returns the CSI message for a snapshot.
func snapshot(st volume.State) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: st.Volume, SourceVolumeId: st.Request.Source, SizeBytes: st.Payload,
		CreationTime: timestamppb.New(st.Request.Created), ReadyToUse: st.Phase == volume.Ready,
	}
}

// DeleteSnapshot implements csi.ControllerServer.
func (d *Driver) DeleteSnapshot(ctx context.Context,
	r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if err := d.destroy(ctx, r.GetSnapshotId(), "snapshot"); err != nil {
		return nil, err
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// ListSnapshots implements csi.ControllerServer. It lists the snapshots of all nodes.
func (d *Driver) ListSnapshots(ctx context.Context,
	r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	states, next, err := d.list(ctx, r.GetStartingToken(), int(r.GetMaxEntries()),
		func(st volume.State) bool {
			return st.Request.Snapshot && (r.GetSnapshotId() == "" ||
				st.Volume == r.GetSnapshotId()) &&
				(r.GetSourceVolumeId() == "" || st.Request.Source == r.GetSourceVolumeId())
		})
	if err != nil {
		return nil, err
	}
	out := &csi.ListSnapshotsResponse{NextToken: next}
	for _, st := range states {
		out.Entries = append(out.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshot(st)})
	}
	return out, nil
}

// GetSnapshot implements csi.ControllerServer.
func (d *Driver) GetSnapshot(ctx context.Context,
	r *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, invalid("no snapshot id")
	}
	st, err := d.anySet.Get(ctx, r.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	if !st.Request.Snapshot || st.Phase == volume.Deleted {
		return nil, notFound("%s is not a snapshot", st.Volume)
	}
	return &csi.GetSnapshotResponse{Snapshot: snapshot(st)}, nil
}

// selectedNode is the annotation of a claim that names the node of its volume. The scheduler skips
// all other nodes (FindPodVolumes in Kubernetes' plugin volumebinding).
const selectedNode = "volume.kubernetes.io/selected-node"

// createFrom creates a volume as a copy of a snapshot or of another volume.
func (d *Driver) createFrom(ctx context.Context, r *csi.CreateVolumeRequest, p Parameters,
	least int64) (volume.State, error) {
	src, isSnapshot := r.GetVolumeContentSource().GetVolume().GetVolumeId(), false
	if s := r.GetVolumeContentSource().GetSnapshot(); s != nil {
		src, isSnapshot = s.GetSnapshotId(), true
	}
	from, err := d.anySet.Get(ctx, src)
	if errors.Is(err, volume.ErrNotFound) {
		from, _, err = d.begun(ctx, r.GetName(), src, err)
	}

	switch {
	case err != nil:
		return from, err
	case from.Volume == src && (from.Request.Snapshot != isSnapshot ||
		from.Phase == volume.Deleted):
		return from, notFound("%s does not exist any more, or the request names a snapshot as a "+
			"volume or a volume as a snapshot", src)
	case from.Request.Node != "" && from.Request.Node != d.Node:
		// ResourceExhausted makes the scheduler try another node.
		return from, &coded{codes.ResourceExhausted,
			fmt.Sprintf("%s is on node %s, where its copy must be, and this is %s: "+
				"veil-csi-placement selects that node; where it does not run, write this: kubectl annotate --overwrite "+
				"-n NAMESPACE pvc CLAIM %s=%s",
				src, from.Request.Node, d.Node, selectedNode, from.Request.Node)}
	case from.Request.Backend != p.Backend:
		return from, invalid("parameter %s: %s is on backend %s, and so is a copy of it",
			paramBackend, src, from.Request.Backend)
	}

	if from.Volume == src {
		if err := d.mayCopy(from, p, r.GetVolumeCapabilities()); err != nil {
			return from, err
		}
	}

	size, err := d.copySize(ctx, r, max(from.Payload, from.PendingPayload), least)
	if err != nil {
		return from, err
	}

	keys, giveBack, err := d.needProvider(p, r.GetSecrets(), "provisioner-secret")
	if err != nil {
		return from, err
	}
	defer giveBack()
	request := volume.Request{Node: d.Node, Backend: p.Backend, Parameters: p.String()}
	return d.copy(ctx, d.Sets[p.Backend], r.GetName(), src,
		volume.CopyOptions{Size: size, Request: request, Keys: d.chain(keys)})
}

// mayCopy refuses a copy with another volumeMode than its source. It also refuses a copy whose key
// another provider would wrap, because a copy has the data key of its source. The class may allow
// either.
func (d *Driver) mayCopy(from volume.State, p Parameters, cs []*csi.VolumeCapability) error {
	for _, c := range cs {
		one, err := readCapability(c)
		if err != nil {
			return err
		}
		if from.Mode != "" && from.Mode != one.mode() && !p.Copies.otherMode() {
			return invalid("%s has volumeMode %s, and its copy is requested with %s: use a class "+
				"with %s: %s", from.Volume, from.Mode, one.mode(), paramCopies, CopiesAnyMode)
		}
	}

	was, err := d.kept(from.Request.Parameters)
	if err != nil {
		return err
	}
	by := was.Keys
	if !from.Key.IsZero() {
		by = from.Key.Provider
	}
	if by != p.Keys && !p.Copies.otherKeys() {
		return invalid("parameter %s: the key of %s is wrapped by %s, and its copy has the same "+
			"data key: use a class with %s: %s, or with %s: %s", paramKeys, from.Volume, by,
			paramKeys, by, paramCopies, CopiesAnyKeys)
	}
	return nil
}

// copySize returns the size in bytes of the requested copy. It is at least source, the present or
// pending size of its source. An existing copy keeps its size, so that a repeated request succeeds
// although the source may have grown since.
func (d *Driver) copySize(ctx context.Context, r *csi.CreateVolumeRequest,
	source, least int64) (int64, error) {
	limit := r.GetCapacityRange().GetLimitBytes()
	have, err := d.anySet.Get(ctx, r.GetName())
	switch {
	case err == nil && have.Phase != volume.New:
		if source = have.Payload; limit > 0 && source > limit {
			return 0, fmt.Errorf("volume %s: %w: it has %d bytes, the limit is %d", have.Volume,
				volume.ErrExists, source, limit)
		}
	case err != nil && !errors.Is(err, volume.ErrNotFound) && !errors.Is(err, volume.ErrState):
		return 0, err
	}
	return sizeOf(&csi.CapacityRange{RequiredBytes: max(r.GetCapacityRange().GetRequiredBytes(),
		source), LimitBytes: limit}, least)
}
