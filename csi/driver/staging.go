package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// stagingFolder is the last element of the path at which the kubelet has a file system staged.
// It names a volume and no pod (makeDeviceMountPath in Kubernetes' pkg/volume/csi).
const stagingFolder = "globalmount"

// isStaging reports whether path is one at which the kubelet stages file systems.
func isStaging(path string) bool { return filepath.Base(path) == stagingFolder }

// forgotten returns where a volume is staged that no pod has, according to the mount table. It is
// empty if a pod has the volume, or if it is not mounted at all. A kubelet that restarts between
// unpublishing and unstaging never unstages.
func forgotten(all []mount.Mount, device uint64) []string {
	at := targets(all, device)
	if slices.ContainsFunc(at, func(path string) bool { return !isStaging(path) }) {
		return nil
	}
	return at
}

// unstageForgotten unmounts the volume where the kubelet forgot it. It changes nothing of a volume
// that a pod has.
func (d *Driver) unstageForgotten(ctx context.Context, set *volume.Set, id string) error {
	o, err := set.Find(ctx, id)
	if errors.Is(err, dmcrypt.ErrNoMapping) {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := d.Mounts.List()
	if err != nil {
		return err
	}

	for _, at := range forgotten(all, o.Mapping.Number) {
		if err := d.Mounts.Unmount(at); err != nil {
			return fmt.Errorf("volume %s: unstage it, which the kubelet forgot: %w", id, err)
		}
		d.Log.Info("volume unmounted from where the kubelet forgot to unstage it", "volume", id,
			"path", at)
	}

	return nil
}

// stagedOnce refuses to stage a volume at a second path: each of the two would forbid to unstage
// the other. CSI promises one path per volume and node.
func stagedOnce(id string, all []mount.Mount, device uint64, path string) error {
	for _, at := range targets(all, device, path) {
		if isStaging(at) {
			return failed("volume %s is staged at %s, and is requested at %s: unstage it there "+
				"first; do two PersistentVolumes have its handle?", id, at, path)
		}
	}
	return nil
}

// places describes for an error where a volume is mounted. A staging folder belongs to no pod.
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
		parts = append(parts, fmt.Sprintf("it is still at %s: end the pods that these folders are "+
			"named by, or look for what they left behind", strings.Join(pods, ", ")))
	}
	if len(staged) > 0 {
		parts = append(parts, fmt.Sprintf("the kubelet has it staged at %s, a folder of no pod: if "+
			"no pod uses it any more, the kubelet forgot to unstage it: a new pod with the claim "+
			"has it unstaged in the end, and so has deleting the claim", strings.Join(staged, ", ")))
	}
	return strings.Join(parts, "; ")
}

// heldBy adds the holders of a mapping in use to an error. sysfs lists other devices and the mount
// table mounts; neither lists open files.
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

// unusedAfter is how long a volume may be open on a node, and published nowhere, before it counts.
const unusedAfter = 10 * time.Minute

// unused remembers the mappings that are published nowhere. Use newUnused.
type unused struct {
	mu sync.Mutex
	// since is when each was first seen published nowhere, by name.
	since map[string]time.Time
	// said are the mappings that were logged.
	said map[string]bool
}

func newUnused() *unused {
	return &unused{since: map[string]time.Time{}, said: map[string]bool{}}
}

// CheckUnused looks for volumes that are open on this node and published nowhere: StagedUnused
// counts them. It reads the mount table and closes nothing: the kubelet may publish one at any
// time.
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
			continue // It went meanwhile, has no volume (Orphans), or a pod has it.
		}
		found[name] = now
		if since, ok := u.since[name]; ok {
			found[name] = since
		}
		if now.Sub(found[name]) >= unusedAfter && !u.said[name] {
			u.said[name] = true
			d.Log.Warn("volume is open and no pod has it: the kubelet may have forgotten to unstage "+
				"it; a new pod with its claim, or deleting the claim, closes it",
				"volume", d.strays.volume(name), "mapping", name, "staged", strings.Join(at, ", "))
		}
	}

	u.since = found
	for name := range u.said {
		if _, ok := found[name]; !ok {
			delete(u.said, name)
		}
	}
	return nil
}

// StagedUnused returns how many volumes were open on this node and published nowhere for the last
// ten minutes, as of the last CheckUnused.
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
