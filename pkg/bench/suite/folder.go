package suite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/service/probe"
)

// Prefix is the first part of the names of a suite's cgroups and folders. The second part is the
// PID of the process that made them.
type Prefix string

// Name returns the prefix with the PID of this process.
func (p Prefix) Name() string { return string(p) + strconv.Itoa(os.Getpid()) }

// Folder makes a temporary folder and returns its path. It removes the folders of runs that were
// killed.
func (p Prefix) Folder() (string, error) {
	for _, dir := range p.OfDead(os.TempDir()) {
		_ = os.RemoveAll(dir)
	}
	dir := filepath.Join(os.TempDir(), p.Name())
	return dir, os.Mkdir(dir, 0o700)
}

// Groups makes the cgroup that contains the cgroups of a run. It removes the cgroups of runs that
// were killed.
func (p Prefix) Groups() (*Groups, error) {
	root, err := probe.FindCgroup()
	if err != nil {
		return nil, err
	}
	for _, dir := range p.OfDead(root) {
		_ = (&Groups{dir}).Close()
	}
	g := &Groups{filepath.Join(root, p.Name())}
	return g, os.Mkdir(g.dir, 0o755)
}

// OfDead returns the folders in root that were made by processes that have ended.
func (p Prefix) OfDead(root string) []string {
	all, err := filepath.Glob(filepath.Join(root, string(p)+"*"))
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(all, func(dir string) bool {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), string(p)))
		return err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	})
}

// Left returns the cgroups and folders of this process that still exist.
func (p Prefix) Left() (left []string) {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", os.TempDir()} {
		if dir := filepath.Join(root, p.Name()); exists(dir) {
			left = append(left, dir)
		}
	}
	return left
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Groups is the cgroup of a run, which contains the cgroups that Add makes.
type Groups struct{ dir string }

// Add makes a cgroup in g and returns its directory, which the caller closes.
func (g *Groups) Add(name string) (*os.File, error) {
	dir := filepath.Join(g.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	return os.Open(dir)
}

// Close removes the cgroups that Add made, and g itself. No process may be in them.
func (g *Groups) Close() error {
	entries, err := os.ReadDir(g.dir)
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, remove(filepath.Join(g.dir, e.Name())))
		}
	}
	return errors.Join(append(errs, remove(g.dir))...)
}

func remove(dir string) error {
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}
