package blk

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Holders returns the holders of the block device with that number, according to sysfs. They are
// the mappings and arrays above it, with the name that an administrator uses, and the loop devices
// on it. Mounts and open files are not in sysfs. sys is the root of sysfs (Sys). Entries that
// cannot be read are left out.
func Holders(sys fs.FS, number uint64) []string {
	dir := fmt.Sprintf("dev/block/%d:%d", unix.Major(number), unix.Minor(number))
	var out []string
	above, _ := fs.ReadDir(sys, dir+"/holders")
	for _, e := range above {
		text := "/dev/" + e.Name()
		if name, _ := attribute(sys, "block/"+e.Name()+"/dm/name"); name != "" {
			text += " (" + name + ")"
		}
		out = append(out, text)
	}

	paths := devicePaths(sys, dir)
	loops, _ := fs.Glob(sys, "block/loop*/loop/backing_file")
	for _, file := range loops {
		backing, _ := attribute(sys, file)
		if slices.Contains(paths, backing) {
			out = append(out, "loop device /dev/"+path.Base(path.Dir(path.Dir(file))))
		}
	}
	return out
}

// devicePaths returns the paths of the device below /dev. They are the kernel's path, and for a
// mapping the path below /dev/mapper.
func devicePaths(sys fs.FS, dir string) (paths []string) {
	event, _ := attribute(sys, dir+"/uevent")
	for line := range strings.Lines(event) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			paths = append(paths, "/dev/"+name)
		}
	}
	if name, _ := attribute(sys, dir+"/dm/name"); name != "" {
		paths = append(paths, "/dev/mapper/"+name)
	}
	return paths
}
