package rootfs

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// blockDevice is a block device of a test: its name, its dm/uuid if it is a mapping, and what it
// is made of.
type blockDevice struct {
	name, uuid string
	below      []blockDevice
}

// chain is a device by the uuids of its mappings, the first on top, on a partition.
func chain(uuids ...string) blockDevice {
	d := blockDevice{name: "vda2"}
	for i, uuid := range slices.Backward(uuids) {
		d = blockDevice{name: fmt.Sprintf("dm-%d", i), uuid: uuid, below: []blockDevice{d}}
	}
	return d
}

// sysfs shows a device with the number 253:0 and those below it.
func sysfs(top blockDevice) fstest.MapFS {
	out := fstest.MapFS{}
	var add func(dir string, d blockDevice)
	add = func(dir string, d blockDevice) {
		out[dir+"/uevent"] = &fstest.MapFile{Data: []byte("MAJOR=253\nDEVNAME=" + d.name + "\n")}
		if d.uuid != "" {
			out[dir+"/dm/uuid"] = &fstest.MapFile{Data: []byte(d.uuid + "\n")}
		}
		for _, b := range d.below {
			out[dir+"/slaves/"+b.name+"/uevent"] = &fstest.MapFile{}
			add("class/block/"+b.name, b)
		}
	}
	add("dev/block/253:0", top)
	return out
}

func TestProtectionOfBlockDevices(t *testing.T) {
	half := blockDevice{"dm-5", "LVM-abc", []blockDevice{chain("CRYPT-VERITY-1-a"), {name: "vdb"}}}

	for name, tt := range map[string]struct {
		top  blockDevice
		want Protection
	}{
		"a partition":       {chain(), Clear},
		"a logical volume":  {chain("LVM-abc"), Clear},
		"LUKS2":             {chain("CRYPT-LUKS2-12ab-root"), Encrypted},
		"plain dm-crypt":    {chain("CRYPT-PLAIN-root"), Encrypted},
		"a volume on LUKS2": {chain("LVM-abc", "CRYPT-LUKS2-12ab-pv"), Encrypted},
		"dm-verity":         {chain("CRYPT-VERITY-12ab-usr"), Verified},
		"LUKS2 with tags": {chain("CRYPT-LUKS2-12-root", "CRYPT-SUBDEV-12-root_dif"),
			Verified},
		"LUKS2 on checksums":     {chain("CRYPT-LUKS2-12-root", "CRYPT-INTEGRITY-sums"), Encrypted},
		"checksums alone":        {chain("CRYPT-INTEGRITY-sums"), Clear},
		"half of it is in clear": {half, Clear},
		"a name that lies":       {chain("VERITY"), Clear},
		"compressed memory":      {blockDevice{name: "zram0"}, Memory},
		"a disk in memory":       {blockDevice{name: "ram0"}, Memory},
		"a disk called ramdisk":  {blockDevice{name: "ramdisk"}, Clear},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := protection(sysfs(tt.top), &mountinfo.Info{FSType: "ext4", Major: 253})
			if err != nil || got != tt.want {
				t.Errorf("got %v, %v; want %v", got, err, tt.want)
			}
			if got.Holds() != (tt.want == Verified || tt.want == Memory) {
				t.Errorf("%v holds: %v", got, got.Holds())
			}
		})
	}
}

func TestProtectionOfFileSystemsWithoutABlockDevice(t *testing.T) {
	for kind, want := range map[string]Protection{
		"tmpfs": Memory, "ramfs": Memory, "overlay": Unknown, "btrfs": Unknown, "nfs4": Unknown,
	} {
		if got, err := protection(fstest.MapFS{}, &mountinfo.Info{FSType: kind}); err != nil ||
			got != want {
			t.Errorf("%s: got %v, %v; want %v", kind, got, err, want)
		}
	}
	if got, err := protection(fstest.MapFS{}, &mountinfo.Info{FSType: "ext4", Major: 8}); err ==
		nil || got.Holds() {
		t.Errorf("a device that sysfs does not have: %v, %v", got, err)
	}
}

// Below uses the innermost mount, and the last of several at the same mount point.
func TestBelowFollowsTheMountTable(t *testing.T) {
	const dir = "/run/kubeveil-rootfs"
	nettest.NewHost(t, dir).Run(t, func() error {
		got, err := Below(dir)
		if err != nil || got != Memory {
			t.Errorf("a tmpfs: %v, %v", got, err)
		}
		if err := os.Mkdir(dir+"/proc", 0o755); err != nil {
			return err
		}
		if err := unix.Mount("proc", dir+"/proc", "proc", 0, ""); err != nil {
			return err
		}
		if got, err := Below(dir + "/proc/sys"); err != nil || got != Unknown {
			t.Errorf("below another mount: %v, %v", got, err)
		}

		if err := unix.Mount("none", dir+"/proc", "tmpfs", 0, ""); err != nil {
			return err
		}
		if got, err := Below(dir + "/proc"); err != nil || got != Memory {
			t.Errorf("the later of two mounts: %v, %v", got, err)
		}

		return nil
	})

	if _, err := Below(dir + "/nowhere"); !os.IsNotExist(err) {
		t.Errorf("a path that is not there: %v", err)
	}
}
