package bpfmaps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/kfeature"
)

// Features reports which optional features the kernel has.
type Features struct {
	// SetRetval is bpf_set_retval (5.18). Without it a connection to a service without backends
	// goes to the discard port of the client's own loopback, which refuses it.
	SetRetval bool
	// TCX is tcx (6.6). Without it programs are filters of clsact.
	TCX bool
}

// FeatureError is the error of a kernel or a machine that lacks a required feature.
type FeatureError struct {
	// What is missing, Since is the first kernel that has it, and Do is the remedy.
	What, Since, Do string
	Err             error
}

func (e *FeatureError) Error() string {
	return fmt.Sprintf("%v: %s (Linux %s): %v: %s", ErrNotSupported, e.What, e.Since, e.Err, e.Do)
}

// Unwrap returns ErrNotSupported and the kernel's error.
func (e *FeatureError) Unwrap() []error { return []error{ErrNotSupported, e.Err} }

// Probe returns the features of services that this machine supports, and changes nothing. The error
// joins a *FeatureError for each missing feature, one of them with ErrNoCgroup. It is
// ErrNotPermitted if this process may not load BPF programs.
func Probe() (Features, error) {
	f, err := probeKernel()
	if errors.Is(err, ErrNotPermitted) {
		return f, err
	}
	_, noCgroup := FindCgroup()
	return f, errors.Join(err, noCgroup)
}

// FindCgroup returns the mount point of the cgroup v2 tree of this process: the machine's, or,
// where only parts are mounted, as in a container, the first part.
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

// PartOfTree reports whether a cgroup directory is not the machine's root: only the root has no
// type (cgroup_base_files, kernel/cgroup/cgroup.c).
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

// needed are the features without which there is no table of services.
var needed = []kfeature.Feature{kfeature.Getpeername, kfeature.NetnsCookieHelper,
	kfeature.HashBatches, kfeature.TrieBatches, kfeature.NetnsCookieOption}

// probeKernel tests the features, and leaves nothing behind.
func probeKernel() (Features, error) {
	var problems []error
	for _, f := range needed {
		has, err := lookFor(f)
		if err == nil && !has {
			err = &FeatureError{f.What, f.Since,
				"use a newer kernel, or leave services to another proxy (serviceProxy: none)",
				ebpf.ErrNotSupported}
		}
		problems = append(problems, err)
	}

	var f Features
	var err error
	f.SetRetval, err = lookFor(kfeature.SetRetval)
	problems = append(problems, err)
	f.TCX, err = lookFor(kfeature.TCX)
	return f, errors.Join(append(problems, err)...)
}

// lookFor reports whether the kernel has a feature. The error of a probe names a remedy.
func lookFor(f kfeature.Feature) (bool, error) {
	has, err := f.Has()
	if err != nil {
		err = Explain(fmt.Errorf("look for %s: %w", f.What, err))
	}
	return has, err
}
