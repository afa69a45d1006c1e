package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// ErrNoCgroup matches a path that is not a cgroup v2, and a machine without one mounted.
var ErrNoCgroup = errors.New("no cgroup v2")

// CgroupOf returns the root of the cgroup tree of the node's processes. Without services.cgroup, it
// must be the root of the machine's tree, because a container sees only its own part, which has
// only veild's own processes.
func CgroupOf(cfg config.Config) (string, error) {
	if cfg.Services.Cgroup != "" {
		return cfg.Services.Cgroup, nil
	}
	if _, err := os.Stat(filepath.Join(abi.HostCgroup, "cgroup.procs")); err == nil {
		return abi.HostCgroup, nil
	}
	path, err := FindCgroup()
	if err != nil {
		return "", err
	}
	return path, wholeTree(path)
}

// errPartOfTree matches a cgroup tree that is only a part of the machine's tree.
var errPartOfTree = errors.New("only a part of the node's cgroup tree, so services would be " +
	"translated only for veild's own sockets")

// wholeTree returns errPartOfTree unless path is the root of the machine's tree.
func wholeTree(path string) error {
	part, err := PartOfTree(path)
	if err != nil {
		return fmt.Errorf("read the cgroup tree: %w", err)
	}
	if part {
		return fmt.Errorf("%s is %w: add the component services (with serviceProxy: none, "+
			"api-path), or set services.cgroup to the root of the tree", path, errPartOfTree)
	}
	return nil
}

// FindCgroup returns the mount point of the machine's cgroup v2 tree. If only parts of it are
// mounted, as in a container, it returns the first part.
func FindCgroup() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("look for cgroups: %w", err)
	}
	return findCgroup(string(mounts), func(path string) bool {
		part, err := PartOfTree(path)
		return part || err != nil
	})
}

// PartOfTree reports whether a cgroup directory is not the root of the machine's tree. Only the
// root has no file cgroup.type (cgroup_base_files, kernel/cgroup/cgroup.c).
func PartOfTree(path string) (bool, error) {
	_, err := os.Stat(filepath.Join(path, "cgroup.type"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func findCgroup(mounts string, part func(path string) bool) (string, error) {
	var found []string
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			found = append(found, f[1])
		}
	}
	if i := slices.IndexFunc(found, func(path string) bool { return !part(path) }); i >= 0 {
		return found[i], nil
	}
	if len(found) > 0 {
		return found[0], nil
	}
	return "", &FeatureError{"a tree of cgroups", "4.10",
		"mount one with: mount -t cgroup2 none /sys/fs/cgroup", ErrNoCgroup}
}

// levelsSearched bounds the depth at which PodLevel looks for the kubelet's cgroup.
const levelsSearched = 4

// PodLevel returns a level of the tree of cgroups at path at which each pod has as many cgroups as
// the runtime gave it, and can make no more. The kubelet's cgroup (kubepods) has a cgroup for each
// QoS class but Guaranteed, below them one for each pod, and below that one for each container. So
// the level has the cgroups of pods, and of containers of Guaranteed pods. PodLevel returns 0 if
// path is not the root of a tree, or the kubelet has no cgroup there.
func PodLevel(path string) (level uint32) {
	if part, err := PartOfTree(path); part || err != nil {
		return 0
	}
	_ = filepath.WalkDir(path, func(at string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || at == path {
			return nil // a cgroup may go meanwhile
		}
		depth := strings.Count(strings.TrimPrefix(at, path), "/")
		if d.Name() == "kubepods" || strings.HasSuffix(d.Name(), "kubepods.slice") {
			level = uint32(depth + 2)
			return fs.SkipAll
		}
		if depth >= levelsSearched {
			return fs.SkipDir
		}
		return nil
	})
	return level
}
