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
	// block means the raw device. Otherwise it is a file system of kind fs; empty means the
	// existing one, or the default.
	block   bool
	fs      mount.FS
	options []string
	// readOnly for all, single for one pod at a time.
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

// readCapabilities reads the capabilities of a request, of which there must be one, and returns the
// smallest size that they allow, in bytes.
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

// mode is the capability in the words of a volume's state.
func (c capability) mode() volume.Mode {
	if c.block {
		return volume.Block
	}
	return volume.Filesystem
}

// sameMode refuses to use a volume in another mode than before: a pod that had the raw device wrote
// what the kernel's file system driver would parse. A class may allow it for its copies.
func sameMode(st volume.State, p Parameters, c capability) error {
	if st.Mode == "" || st.Mode == c.mode() {
		return nil
	}
	if st.Request.Source != "" && p.Copies.otherMode() {
		return nil
	}
	return failed("volume %s was used with volumeMode %s, or is a copy of such a volume, and is "+
		"requested with %s: a copy may be, if its class has %s: %s", st.Volume, st.Mode, c.mode(),
		paramCopies, CopiesAnyMode)
}

// kind is the file system to be made.
func (c capability) kind() mount.FS {
	if c.fs == "" {
		return mount.Ext4
	}
	return c.fs
}
