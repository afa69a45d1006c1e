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
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/tchook"
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
// joins a
// *FeatureError for each missing feature, one of them with ErrNoCgroup. Without permission to ask
// it is ErrNotPermitted.
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

// probeKernel tests the features by loading programs and maps, and leaves nothing behind.
func probeKernel() (Features, error) {
	var f Features
	var missing []error
	need := func(what, since string, err error) {
		switch {
		case err == nil:
		case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
			missing = append(missing, &FeatureError{what, since,
				"use a newer kernel, or leave services to another proxy (serviceProxy: none)", err})
		default:
			missing = append(missing, Explain(fmt.Errorf("look for %s: %w", what, err)))
		}
	}

	have := func(what string, err error) bool {
		if err != nil && !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EINVAL) {
			missing = append(missing, Explain(fmt.Errorf("look for %s: %w", what, err)))
		}
		return err == nil
	}
	need("programs at getpeername", "5.8", probeGetpeername())
	need("cookies of network namespaces", "5.8",
		features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnGetNetnsCookie))
	need("batches of hash maps", "5.6",
		probeBatch(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 1,
			Flags: unix.BPF_F_NO_PREALLOC}))

	need("batches of tries", "5.13", probeBatch(&ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 8,
		ValueSize: 4, MaxEntries: 1, Flags: unix.BPF_F_NO_PREALLOC}))
	_, err := netnsCookie()
	need("SO_NETNS_COOKIE", "5.14", err)
	f.SetRetval = have("bpf_set_retval", features.HaveProgramHelper(ebpf.CGroupSockAddr,
		asm.FnSetRetval))

	has, err := tchook.HasTCX()
	f.TCX = have("tcx", err) && has
	return f, errors.Join(missing...)
}

// netnsCookie returns the cookie of this thread's network namespace, by which programs know its
// sockets.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		err = fmt.Errorf("%w: %w", ebpf.ErrNotSupported, err)
	}
	return cookie, err
}

func probeGetpeername() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCgroupInet4GetPeername,
		License:      "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		return err
	}
	return p.Close()
}

func probeBatch(spec *ebpf.MapSpec) error {
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return err
	}
	defer m.Close()
	_, err = m.BatchUpdate([]uint64{0}, []uint32{0}, nil)
	return err
}
