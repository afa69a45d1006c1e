package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// stagingFolder is the last element of the paths at which the kubelet stages file systems. Such a
// path names a volume, not a pod (makeDeviceMountPath in Kubernetes' pkg/volume/csi).
const stagingFolder = "globalmount"

// isStaging reports whether path is a path at which the kubelet stages file systems.
func isStaging(path string) bool { return filepath.Base(path) == stagingFolder }

// forgotten returns the staging paths of a volume that no pod uses, according to the mount table.
// It returns nothing if a pod uses the volume, or if the volume is not mounted. A kubelet that
// restarts between unpublishing and unstaging a volume never unstages it.
func forgotten(all []mount.Mount, device uint64) []string {
	at := targets(all, device)
	if slices.ContainsFunc(at, func(path string) bool { return !isStaging(path) }) {
		return nil
	}
	return at
}

// unstageForgotten unmounts a volume that no pod uses from its staging paths. It does not change a
// volume that a pod uses.
func (d *Driver) unstageForgotten(ctx context.Context, set *volume.Set, id string) error {
	all, number, err := d.mountsOf(ctx, set, id)
	if err != nil {
		return err
	}
	for _, at := range forgotten(all, number) {
		if err := d.Mounts.Unmount(at); err != nil {
			return fmt.Errorf("volume %s: unmount it, because the kubelet did not: %w", id, err)
		}
		d.Log.Info("volume unmounted from where the kubelet forgot to unstage it", "volume", id,
			"path", at)
	}

	return nil
}

// stagedOnce returns an error if the volume is staged at another path than path. CSI stages a
// volume once per node. With two staging paths, neither could be unstaged, because the volume would
// be in use at the other.
func stagedOnce(id string, all []mount.Mount, device uint64, path string) error {
	for _, at := range targets(all, device, path) {
		if isStaging(at) {
			return failed("volume %s is staged at %s, and is requested at %s: unstage it there "+
				"first; do two PersistentVolumes have its handle?", id, at, path)
		}
	}
	return nil
}

// places returns the part of an error that describes where a volume is mounted and what to do. A
// staging folder does not belong to a pod.
func places(at []string) string {
	var pods, staged []string
	for _, path := range at {
		if isStaging(path) {
			staged = append(staged, path)
		} else {
			pods = append(pods, path)
		}
	}

	var parts []string
	if len(pods) > 0 {
		parts = append(parts, fmt.Sprintf("it is still mounted at %s: end the pods whose uids are "+
			"in these paths, or unmount what they left behind", strings.Join(pods, ", ")))
	}
	if len(staged) > 0 {
		parts = append(parts, fmt.Sprintf("the kubelet has it staged at %s, a folder of no pod: if "+
			"no pod uses it any more, the kubelet forgot to unstage it; it is unstaged after a "+
			"new pod with the claim ends, or when the claim is deleted",
			strings.Join(staged, ", ")))
	}
	return strings.Join(parts, "; ")
}

// heldBy adds the holders of the volume's mapping to err if err is volume.ErrInUse. It knows
// holders that are devices, from sysfs, and mounts, but not open files.
func (d *Driver) heldBy(ctx context.Context, set *volume.Set, id string, err error) error {
	if !errors.Is(err, volume.ErrInUse) {
		return err
	}
	o, unknown := set.Find(ctx, id)
	if unknown != nil {
		return err
	}
	by := d.holders(o.Mapping.Number)
	if all, unlisted := d.Mounts.List(); unlisted == nil {
		for _, at := range targets(all, o.Mapping.Number) {
			by = append(by, "mount "+at)
		}
	}
	if len(by) == 0 {
		by = []string{"no other device and no mount that veil-csi sees: a process has it open (on " +
			"the node: fuser -v " + o.Mapping.Path + "), or another mount namespace has it mounted"}
	}
	return fmt.Errorf("%w; %s is held by %s", err, o.Mapping.Path, strings.Join(by, ", "))
}

// unusedAfter is how long a volume must be open and not published before StagedUnused counts it.
const unusedAfter = 10 * time.Minute

// unused remembers the mappings that are not published. Use newUnused.
type unused struct {
	mu sync.Mutex
	// since holds the time at which each mapping was first seen unpublished, keyed by name.
	since map[string]time.Time
	// said holds the names of the mappings that were logged.
	said map[string]bool
}

func newUnused() *unused {
	return &unused{since: map[string]time.Time{}, said: map[string]bool{}}
}

// CheckUnused finds the volumes that are open on this node and not published. StagedUnused counts
// them. It closes no volume, because the kubelet may publish the volume at any time.
func (d *Driver) CheckUnused(ctx context.Context) error {
	names, err := d.anySet.Engine.List(ctx, dmcrypt.NamePrefixAll)
	if err != nil {
		return err
	}
	all, err := d.Mounts.List()
	if err != nil {
		return err
	}

	u, now := d.unused, time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	found := map[string]time.Time{}
	for _, name := range names {
		m, err := d.anySet.Engine.Lookup(ctx, name)
		at := targets(all, m.Number)
		if err != nil || m.Dead() || d.strays.volume(name) == "" ||
			len(at) != len(forgotten(all, m.Number)) {
			continue // It was closed meanwhile, has no volume (Orphans), or a pod uses it.
		}
		found[name] = now
		if since, ok := u.since[name]; ok {
			found[name] = since
		}
		if now.Sub(found[name]) >= unusedAfter && !u.said[name] {
			u.said[name] = true
			d.Log.Warn("a volume is open, but no pod uses it: the kubelet may have forgotten to "+
				"unstage it; to close it, run and end a pod with its claim, or delete the claim",
				"volume", d.strays.volume(name), "mapping", name, "staged", strings.Join(at, ", "))
		}
	}

	u.since = found
	maps.DeleteFunc(u.said, func(name string, _ bool) bool { return found[name].IsZero() })
	return nil
}

// StagedUnused returns the number of volumes that were open on this node and not published for ten
// minutes. It uses the result of the last CheckUnused.
func (d *Driver) StagedUnused() (n int) {
	d.unused.mu.Lock()
	defer d.unused.mu.Unlock()
	for _, since := range d.unused.since {
		if time.Since(since) >= unusedAfter {
			n++
		}
	}
	return n
}
