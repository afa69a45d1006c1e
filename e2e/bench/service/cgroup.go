package service

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

	"github.com/kubeveil/kubeveil/pkg/service/table"
)

// groupPrefix begins the names of our cgroups and folders; the number of the process that made it
// follows.
const groupPrefix = "kubeveil-bench-service-"

// groups is a cgroup of this run, with one for each lane that wants one.
type groups struct{ dir string }

// newGroups makes the cgroup, and takes away those that runs left which were killed.
func newGroups() (*groups, error) {
	root, err := table.FindCgroup()
	if err != nil {
		return nil, err
	}
	for _, dir := range ofDead(root) {
		_ = (&groups{dir}).close()
	}
	g := &groups{filepath.Join(root, ownName())}
	return g, os.Mkdir(g.dir, 0o755)
}

// newFolder makes a folder for files of programs, in the same way.
func newFolder() (string, error) {
	for _, dir := range ofDead(os.TempDir()) {
		_ = os.RemoveAll(dir)
	}
	dir := filepath.Join(os.TempDir(), ownName())
	return dir, os.Mkdir(dir, 0o700)
}

func ownName() string { return groupPrefix + strconv.Itoa(os.Getpid()) }

// ofDead returns the folders in root that processes made which are no more.
func ofDead(root string) []string {
	all, err := filepath.Glob(filepath.Join(root, groupPrefix+"*"))
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(all, func(dir string) bool {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), groupPrefix))
		return err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	})
}

// add makes a cgroup below.
func (g *groups) add(name string) (*os.File, error) {
	dir := filepath.Join(g.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	return os.Open(dir)
}

// close takes all of them away; no process may be in them.
func (g *groups) close() error {
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
