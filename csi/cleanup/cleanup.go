package cleanup

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
)

// Errors of Run. After each of them, Run has changed nothing.
var (
	// ErrRunning means that a driver listens on its socket on this node.
	ErrRunning = errors.New("veil-csi is running on this node: delete its DaemonSet first, " +
		"because it would create everything again")
	// ErrOpen means that volumes are open on this node.
	ErrOpen = errors.New("volumes are open on this node: end the pods that use them while " +
		"veil-csi runs, so that it closes them")
	// ErrLeft means that ciphertext is left that the caller did not allow to destroy.
	ErrLeft = errors.New("ciphertext is left on this node: delete the claims and snapshots while " +
		"veil-csi runs, or allow to destroy it")
)

// Paths are the paths that Run reads and removes.
type Paths struct {
	// Endpoint is the driver's socket, Registration its socket in the kubelet's registration
	// folder. Each may be empty.
	Endpoint, Registration string
	// Files is the folder with the ciphertext of volumes, Claims the folder with a claim file per
	// assigned disk. Each may be empty.
	Files, Claims string
	// Run is the folder of lock files.
	Run string
	// Blocks is the folder of block devices in sysfs.
	Blocks string
}

// dialPatience is how long a driver may take to accept a connection.
const dialPatience = time.Second

// Run removes the driver's files and folders from this node. With destroy, it also removes
// ciphertext. It releases disks of volumes, but does not write to them. It calls took with a
// description of each file or folder that it removed.
func Run(p Paths, destroy bool, took func(what string)) error {
	left, err := p.check(destroy)
	if err != nil {
		return err
	}

	var errs []error
	remove := func(what, path string) {
		gone, err := removed(path)
		errs = append(errs, err)
		if gone {
			took(what + " " + path)
		}
	}

	for _, path := range left {
		remove("ciphertext or claim", path)
	}

	for what, path := range map[string]string{"registration": p.Registration,
		"socket": p.Endpoint} {
		if path != "" {
			remove(what, path)
		}
	}

	if p.Endpoint != "" {
		remove("folder", filepath.Dir(p.Endpoint))
	}

	locks, err := entries(p.Run)
	errs = append(errs, err)
	for _, path := range locks {
		remove("lock", path)
	}

	for _, dir := range p.folders() {
		remove("folder", dir)
	}
	return errors.Join(errs...)
}

// folders returns the driver's own folders, each before its parent.
func (p Paths) folders() []string {
	var dirs []string
	for _, dir := range []string{p.Files, p.Claims, p.Run} {
		if dir != "" {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range []string{p.Files, p.Run} {
		if dir == "" {
			continue
		}
		// remove keeps this parent folder if other programs have files in it.
		dirs = append(dirs, filepath.Dir(dir))
	}
	return dirs
}

// check returns the paths of ciphertext and claims that are left. It returns an error of Run if Run
// must not change anything.
func (p Paths) check(destroy bool) (left []string, err error) {
	if p.Endpoint != "" {
		if conn, err := net.DialTimeout("unix", p.Endpoint, dialPatience); err == nil {
			conn.Close()
			return nil, ErrRunning
		}
	}
	open, err := p.open()
	if err != nil {
		return nil, err
	}
	if len(open) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrOpen, strings.Join(open, ", "))
	}
	for _, dir := range []string{p.Files, p.Claims} {
		found, err := entries(dir)
		if err != nil {
			return nil, err
		}
		left = append(left, found...)
	}
	if len(left) > 0 && !destroy {
		return nil, fmt.Errorf("%w: %s", ErrLeft, strings.Join(left, ", "))
	}
	return left, nil
}

// open returns the names of all mappings of volumes, in order.
func (p Paths) open() ([]string, error) {
	devices, err := os.ReadDir(p.Blocks)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range devices {
		b, err := os.ReadFile(filepath.Join(p.Blocks, d.Name(), "dm", "name"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // It is not a mapping, or was removed meanwhile.
		}
		if err != nil {
			return nil, err
		}
		if name := strings.TrimSpace(string(b)); strings.HasPrefix(name, dmcrypt.NamePrefixAll) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// entries returns the paths of the entries of a folder. It returns nil if dir is empty or does not
// exist.
func entries(dir string) ([]string, error) {
	if dir == "" {
		return nil, nil
	}
	found, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range found {
		out = append(out, filepath.Join(dir, e.Name()))
	}
	return out, err
}

// removed removes a file or an empty folder, and reports whether it did. It returns false without
// an error if path is missing, not empty or a mount point.
func removed(path string) (bool, error) {
	switch err := os.Remove(path); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EBUSY):
		return false, nil
	default:
		return false, err
	}
}
