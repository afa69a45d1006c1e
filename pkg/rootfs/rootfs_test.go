package rootfs

import (
	"os"
	"testing"
	"testing/fstest"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/nettest"
)

// sysfs is a tree of block devices: devices maps a name to its dm/uuid, below maps a
// name to the devices it is made of. The first device of a test has the number 253:0.
func sysfs(top string, uuids map[string]string, below map[string][]string) fstest.MapFS {
	out := fstest.MapFS{}
	add := func(dir, name string) {
		out[dir+"/uevent"] = &fstest.MapFile{Data: []byte("MAJOR=253\nDEVNAME=" + name + "\n")}
		if uuid, ok := uuids[name]; ok {
			out[dir+"/dm/uuid"] = &fstest.MapFile{Data: []byte(uuid + "\n")}
		}
		for _, b := range below[name] {
			out[dir+"/slaves/"+b+"/uevent"] = &fstest.MapFile{}
		}
	}
	add("dev/block/253:0", top)
	for _, names := range below {
		for _, n := range names {
			add("class/block/"+n, n)
		}
	}
	return out
}

func TestProtectionOfBlockDevices(t *testing.T) {
	for name, tt := range map[string]struct {
		top   string
		uuids map[string]string
		below map[string][]string
		want  Protection
	}{
		"a partition":            {"vda1", nil, nil, Clear},
		"a logical volume":       {"dm-0", map[string]string{"dm-0": "LVM-abc"}, map[string][]string{"dm-0": {"vda2"}}, Clear},
		"LUKS2":                  {"dm-0", map[string]string{"dm-0": "CRYPT-LUKS2-12ab-root"}, map[string][]string{"dm-0": {"vda2"}}, Encrypted},
		"plain dm-crypt":         {"dm-0", map[string]string{"dm-0": "CRYPT-PLAIN-root"}, map[string][]string{"dm-0": {"vda2"}}, Encrypted},
		"a volume on LUKS2":      {"dm-0", map[string]string{"dm-0": "LVM-abc", "dm-1": "CRYPT-LUKS2-12ab-pv"}, map[string][]string{"dm-0": {"dm-1"}, "dm-1": {"vda2"}}, Encrypted},
		"dm-verity":              {"dm-0", map[string]string{"dm-0": "CRYPT-VERITY-12ab-usr"}, map[string][]string{"dm-0": {"vda2", "vda3"}}, Verified},
		"LUKS2 with tags":        {"dm-0", map[string]string{"dm-0": "CRYPT-LUKS2-12ab-root", "dm-1": "CRYPT-SUBDEV-12ab-root_dif"}, map[string][]string{"dm-0": {"dm-1"}, "dm-1": {"vda2"}}, Verified},
		"LUKS2 on checksums":     {"dm-0", map[string]string{"dm-0": "CRYPT-LUKS2-12ab-root", "dm-1": "CRYPT-INTEGRITY-sums"}, map[string][]string{"dm-0": {"dm-1"}, "dm-1": {"vda2"}}, Encrypted},
		"checksums alone":        {"dm-0", map[string]string{"dm-0": "CRYPT-INTEGRITY-sums"}, map[string][]string{"dm-0": {"vda2"}}, Clear},
		"half of it is in clear": {"dm-0", map[string]string{"dm-0": "LVM-abc", "dm-1": "CRYPT-VERITY-1-a"}, map[string][]string{"dm-0": {"dm-1", "vdb"}, "dm-1": {"vda2"}}, Clear},
		"a name that lies":       {"dm-0", map[string]string{"dm-0": "VERITY"}, map[string][]string{"dm-0": {"vda2"}}, Clear},
		"compressed memory":      {"zram0", nil, nil, Memory},
		"a disk in memory":       {"ram0", nil, nil, Memory},
		"a disk called ramdisk":  {"ramdisk", nil, nil, Clear},
	} {
		t.Run(name, func(t *testing.T) {
			m := &mountinfo.Info{FSType: "ext4", Major: 253}
			got, err := protection(sysfs(tt.top, tt.uuids, tt.below), m)
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
	for kind, want := range map[string]Protection{"tmpfs": Memory, "ramfs": Memory, "overlay": Unknown, "btrfs": Unknown, "nfs4": Unknown} {
		if got, err := protection(fstest.MapFS{}, &mountinfo.Info{FSType: kind}); err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", kind, got, err, want)
		}
	}
	if got, err := protection(fstest.MapFS{}, &mountinfo.Info{FSType: "ext4", Major: 8}); err == nil || got.Holds() {
		t.Errorf("a device that sysfs does not have: %v, %v", got, err)
	}
}

// The innermost mount rules, the last of several at one place.
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
