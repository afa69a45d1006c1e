package driver

import (
	"context"
	"errors"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/volume"
)

const (
	// defaultSize is the size in bytes of a volume whose request names no size.
	defaultSize = 1 << 30
	// maxSize is the largest volume in bytes, because one XTS key encrypts a whole volume. IEEE
	// P1619 recommends about 1 TiB for a key and allows no more than 256 TiB.
	maxSize = 16 << 40
)

// ControllerGetCapabilities implements csi.ControllerServer. It does not list EXPAND_VOLUME,
// because the node service expands volumes.
func (d *Driver) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	} {
		r.Capabilities = append(r.Capabilities,
			&csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
				Rpc: &csi.ControllerServiceCapability_RPC{Type: t},
			}})
	}
	return r, nil
}

// CreateVolume implements csi.ControllerServer. It allocates the space now, so that a full node is
// noticed before a pod waits for the volume.
func (d *Driver) CreateVolume(ctx context.Context,
	r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, invalid("no name")
	}
	least, err := readCapabilities(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	p, err := d.parse(r.GetParameters())
	if err != nil {
		return nil, err
	}
	if err := noMutable(r.GetMutableParameters()); err != nil {
		return nil, err
	}

	if err := d.here(r.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}

	unlock, err := d.lock(r.GetName())
	if err != nil {
		return nil, err
	}
	defer unlock()
	var st volume.State
	if r.GetVolumeContentSource() != nil {
		st, err = d.createFrom(ctx, r, p, least)
	} else {
		st, err = d.create(ctx, r, p, least)
	}

	if err != nil {
		return nil, err
	}

	v := d.describe(st)
	v.ContentSource = r.GetVolumeContentSource()
	return &csi.CreateVolumeResponse{Volume: v}, nil
}

// create creates the state of a volume and allocates its space. If the space is missing, it removes
// the state, so that another node can serve the request.
func (d *Driver) create(ctx context.Context, r *csi.CreateVolumeRequest, p Parameters,
	least int64) (volume.State, error) {
	size, err := sizeOf(r.GetCapacityRange(), least)
	if err != nil {
		return volume.State{}, err
	}

	id, set := r.GetName(), d.Sets[p.Backend]
	// A repeated request also matches a volume that was expanded since, within the request's limit.
	limit := r.GetCapacityRange().GetLimitBytes()
	if have, err := d.anySet.Get(ctx, id); err == nil && have.Phase == volume.Ready &&
		have.Payload > size && (limit == 0 || have.Payload <= limit) {
		size = have.Payload
	}

	request := volume.Request{Node: d.Node, Backend: p.Backend, Parameters: p.String()}
	st, err := set.Create(ctx, id, size, request)
	if errors.Is(err, volume.ErrDeleted) && st.Request.Node == d.Node {
		// An earlier request found no space, and its removal of the state was interrupted.
		if err = d.remove(ctx, set, id); err == nil {
			st, err = set.Create(ctx, id, size, request)
		}
	}

	if err != nil || st.Phase != volume.New {
		return st, err
	}
	err = set.Backend.Provision(ctx, id, crypt.DeviceSize(st.Payload))
	if !errors.Is(err, backend.ErrFull) {
		return st, err
	}

	// If a backing exists, keep the state: it may be restored from a backup, and the backing may be
	// all that remains of the volume.
	if _, there := set.Backend.Attach(ctx, id); !errors.Is(there, backend.ErrMissing) {
		return st, errors.Join(err, there, set.Backend.Detach(ctx, id))
	}

	return st, errors.Join(err, d.remove(ctx, set, id))
}

// remove deletes a volume and its state.
func (d *Driver) remove(ctx context.Context, set *volume.Set, id string) error {
	r, err := set.Delete(ctx, id)
	if err != nil {
		return d.heldBy(ctx, set, id, err)
	}
	if r.Why != nil {
		d.Log.Warn("volume deleted and its key destroyed, but the header on its disk could not be "+
			"overwritten", "volume", id, "why", r.Why)
	}
	return set.Forget(ctx, id)
}

// describe returns the CSI message for a volume.
func (d *Driver) describe(st volume.State) *csi.Volume {
	v := &csi.Volume{VolumeId: st.Volume, CapacityBytes: st.Payload}
	if st.Request.Node != "" {
		v.AccessibleTopology = []*csi.Topology{topology(st.Request.Node)}
	}
	if p, err := d.kept(st.Request.Parameters); err == nil {
		v.VolumeContext = p.Map()
	}
	return v
}

func topology(node string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{TopologyKey: node}}
}

// noMutable refuses all parameters of a VolumeAttributesClass, because the driver supports none.
func noMutable(given map[string]string) error {
	for name := range given {
		return invalid("parameter %q: parameters of an existing volume cannot be changed: clone "+
			"the volume with another StorageClass", name)
	}
	return nil
}

// sizeOf returns the payload in bytes for the range r. It is at least least.
func sizeOf(r *csi.CapacityRange, least int64) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required < 0 || limit < 0 {
		return 0, outOf("negative size")
	}
	if required == 0 {
		required = defaultSize
		if limit > 0 {
			required = min(required, limit&^(crypt.SectorSize-1))
		}
	}
	if required > maxSize {
		return 0, outOf("%d bytes are more than %d", required, int64(maxSize))
	}
	size := crypt.PayloadSize(max(required, least))
	if limit > 0 && size > limit {
		return 0, outOf("the limit is %d bytes, and the smallest volume for this request "+
			"has %d", limit, size)
	}
	return size, nil
}

// here refuses topology requirements that this node does not meet.
func (d *Driver) here(r *csi.TopologyRequirement) error {
	if len(r.GetRequisite()) == 0 || slices.ContainsFunc(r.GetRequisite(), d.isHere) {
		return nil
	}
	return &coded{codes.ResourceExhausted, "node " + d.Node +
		" creates volumes only on itself, and the request requires other nodes"}
}

func (d *Driver) isHere(t *csi.Topology) bool { return t.GetSegments()[TopologyKey] == d.Node }

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(ctx context.Context,
	r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := d.destroy(ctx, r.GetVolumeId(), "volume"); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// destroy deletes the volume or snapshot id, if it exists; what is "volume" or "snapshot".
func (d *Driver) destroy(ctx context.Context, id, what string) error {
	if id == "" {
		return invalid("no %s id", what)
	}
	if backend.CheckName(id) != nil {
		return nil // No volume and no snapshot can have this name.
	}

	unlock, err := d.lock(id)
	if err != nil {
		return err
	}
	defer unlock()

	is := "volume"
	st, set, err := d.own(ctx, id)
	if st.Request.Snapshot {
		is = "snapshot"
	}
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil
	case err != nil:
		return err
	case is != what:
		return invalid("%s is a %s, not a %s", id, is, what)
	}

	err = d.mayDelete(ctx, st)
	if err == nil && what == "volume" {
		if err = d.unstageForgotten(ctx, set, id); err == nil {
			err = d.notInUse(ctx, set, st)
		}
	}
	if err != nil {
		return err
	}
	return d.remove(ctx, set, id)
}

// Destroy deletes a volume or snapshot as DeleteVolume or DeleteSnapshot does. The caller checks
// first that no PersistentVolume or VolumeSnapshotContent names it.
func (d *Driver) Destroy(ctx context.Context, id string) error {
	st, err := d.anySet.Get(ctx, id)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Request.Snapshot {
		return d.destroy(ctx, id, "snapshot")
	}
	return d.destroy(ctx, id, "volume")
}

// own returns the state and Set of a volume that was made on this node, or that this node took over
// or may take over. It refuses any other volume.
func (d *Driver) own(ctx context.Context, id string) (volume.State, *volume.Set, error) {
	st, err := d.anySet.Get(ctx, id)
	if err != nil {
		return st, nil, err
	}
	if st.Request.Node != "" && st.Request.Node != d.Node && st.Writer != d.Node {
		from, err := d.TakeOver(ctx, id)
		if err != nil {
			return st, nil, err
		}
		if from == "" || from != st.Request.Node && from != st.Writer {
			return st, nil, failed("volume %s is on node %s, and this is node %s; if node %[2]s "+
				"will not return and its disk is here, let this node take the volume over; "+
				"if node %[2]s took the volume over, the PersistentVolume still names this node "+
				"and cannot be changed, so create another PersistentVolume: "+
				"docs/how-to/a-node-that-is-gone.md", id, st.Request.Node, d.Node)
		}
	}
	set, err := d.set(st)
	return st, set, err
}

// mayDelete refuses a volume that was or may be taken over, because deleting its key would destroy
// the data on the other node. The node that took the volume over may delete it once the volume's
// request names that node.
func (d *Driver) mayDelete(ctx context.Context, st volume.State) error {
	if st.Request.Node != "" && st.Request.Node != d.Node {
		return failed("volume %s was taken over from node %s: before you delete it, declare that "+
			"it belongs to node %s: docs/how-to/a-node-that-is-gone.md", st.Volume,
			st.Request.Node, d.Node)
	}
	_, err := d.TakeOver(ctx, st.Volume)
	return err
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(ctx context.Context,
	r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, invalid("no volume id")
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("no volume capabilities")
	}
	st, err := d.anySet.Get(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if _, err := readCapabilities(r.GetVolumeCapabilities()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	p, err := d.parse(r.GetParameters())
	if err == nil && len(r.GetParameters()) > 0 && p.String() != st.Request.Parameters {
		err = invalid("the volume has parameters %s", st.Request.Parameters)
	}
	if err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(),
			Parameters: r.GetParameters(),
		}}, nil
}

// GetCapacity implements csi.ControllerServer.
func (d *Driver) GetCapacity(ctx context.Context,
	r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	p, err := d.parse(r.GetParameters())
	if err != nil {
		return nil, err
	}
	if t := r.GetAccessibleTopology(); t != nil && !d.isHere(t) {
		return &csi.GetCapacityResponse{}, nil
	}
	free, err := d.Sets[p.Backend].Backend.Capacity(ctx)
	if err != nil {
		return nil, err
	}
	free = max(0, free-crypt.DataOffset) &^ (crypt.SectorSize - 1)
	return &csi.GetCapacityResponse{AvailableCapacity: free,
		MaximumVolumeSize: wrapperspb.Int64(free)}, nil
}
