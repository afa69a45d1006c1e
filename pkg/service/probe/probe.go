package probe

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/kfeature"
	"github.com/kubeveil/kubeveil/pkg/config"
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
	// What is missing, Since is the first kernel that has it, and Do is the remedy. Since is empty
	// if no kernel of this kind has it.
	What, Since, Do string
	Err             error
}

func (e *FeatureError) Error() string {
	what := e.What
	if e.Since != "" {
		what += fmt.Sprintf(" (Linux %s)", e.Since)
	}
	return fmt.Sprintf("%v: %s: %v: %s", bpfobj.ErrNotSupported, what, e.Err, e.Do)
}

func (e *FeatureError) Unwrap() []error { return []error{bpfobj.ErrNotSupported, e.Err} }

// needed are the features without which there is no table of services.
var needed = []kfeature.Feature{kfeature.Getpeername, kfeature.NetnsCookieHelper,
	kfeature.HashBatches, kfeature.TrieBatches, kfeature.NetnsCookieOption,
	kfeature.SocketStorage}

// Kernel returns the optional features of services that this kernel supports. The error joins a
// *FeatureError for each missing feature. It leaves nothing behind.
func Kernel() (Features, error) {
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

// lookFor reports whether the kernel has a feature. An error names a remedy.
func lookFor(f kfeature.Feature) (bool, error) {
	has, err := f.Has()
	if err != nil {
		err = Explain(fmt.Errorf("look for %s: %w", f.What, err))
	}
	return has, err
}

// Check returns an error that names what this machine lacks for the table of services. It changes
// nothing.
func Check(cfg config.Config) error {
	if _, err := CgroupOf(cfg); err != nil {
		return err
	}
	_, err := Kernel()
	if !errors.Is(err, bpfobj.ErrNotPermitted) {
		_, noCgroup := FindCgroup()
		err = errors.Join(err, noCgroup)
	}
	if cfg.ServiceProxy == config.ServiceProxyEBPF {
		err = errors.Join(err, Links())
	}
	return err
}

// Links returns a *FeatureError if this kernel cannot run the programs at links: it preempts them,
// and two programs of one processor would use the same scratch space.
func Links() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("read the kernel's version: %w", err)
	}
	return realTime(unix.ByteSliceToString(name.Version[:]))
}

// realTime is Links for a kernel with this version, as in uname -v.
func realTime(version string) error {
	if !slices.Contains(strings.Fields(version), "PREEMPT_RT") {
		return nil
	}
	return &FeatureError{What: "programs at links that are not preempted",
		Do: "use a kernel without PREEMPT_RT, or leave services to another proxy " +
			"(serviceProxy: none)",
		Err: fmt.Errorf("%w: the kernel is built with PREEMPT_RT", ebpf.ErrNotSupported)}
}

// Explain adds a remedy to the kernel's error.
func Explain(err error) error {
	return bpfobj.Explain(err,
		"a kernel with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF, 6.1 or newer,")
}
