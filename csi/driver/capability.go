package driver

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// modes are the access modes that a single-node volume can have.
var modes = []csi.VolumeCapability_AccessMode_Mode{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
}

// capability is the requested use of a volume.
type capability struct {
	// block means the raw device. Otherwise fs is the kind of the file system. An empty fs means
	// the kind that is on the volume, or Ext4 for a new volume.
	block   bool
	fs      mount.FS
	options []string
	// readOnly means that no pod may write. single means that only one pod at a time may use the
	// volume.
	readOnly, single bool
}

// readCapability reads one capability of a request.
func readCapability(c *csi.VolumeCapability) (capability, error) {
	if c == nil {
		return capability{}, invalid("no volume capability")
	}
	mode := c.GetAccessMode().GetMode()
	if !slices.Contains(modes, mode) {
		return capability{}, invalid("access mode %s: a volume is on one node: use ReadWriteOnce "+
			"or ReadWriteOncePod", mode)
	}
	out := capability{
		readOnly: mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		single:   mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	}
	switch {
	case c.GetBlock() != nil:
		out.block = true
		return out, nil
	case c.GetMount() == nil:
		return out, invalid("volume capability without access type: mount or block")
	}
	out.fs, out.options = mount.FS(c.GetMount().GetFsType()), c.GetMount().GetMountFlags()
	if out.fs != "" && !out.fs.Known() {
		return out, invalid("file system %q: known are %v", out.fs, mount.Kinds)
	}
	return out, mount.CheckOptions(out.options)
}

// readCapabilities reads the capabilities of a request, which needs at least one. least is the
// smallest size in bytes that suits all of them.
func readCapabilities(cs []*csi.VolumeCapability) (least int64, err error) {
	if len(cs) == 0 {
		return 0, invalid("no volume capabilities")
	}
	for _, c := range cs {
		one, err := readCapability(c)
		if err != nil {
			return 0, err
		}
		if !one.block {
			least = max(least, one.kind().MinSize())
		}
	}
	return least, nil
}

// mode returns the capability in the form that a volume's state keeps.
func (c capability) mode() volume.Mode {
	if c.block {
		return volume.Block
	}
	return volume.Filesystem
}

// sameMode refuses to use a volume in another mode than before. Otherwise a pod could write a
// malicious file system to the raw device, which the kernel would parse after the change of mode. A
// class may allow the change for copies.
func sameMode(st volume.State, p Parameters, c capability) error {
	if st.Mode == "" || st.Mode == c.mode() {
		return nil
	}
	if st.Request.Source != "" && p.Copies.otherMode() {
		return nil
	}
	return failed("volume %s was used with volumeMode %s, or is a copy of such a volume, and is "+
		"requested with %s: only a copy may change it, if its class has %s: %s", st.Volume, st.Mode,
		c.mode(), paramCopies, CopiesAnyMode)
}

// kind returns the kind of file system to make on a new volume.
func (c capability) kind() mount.FS {
	if c.fs == "" {
		return mount.Ext4
	}
	return c.fs
}
