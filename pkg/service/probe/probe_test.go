package probe

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// TestProbe checks the features that the kernel's version promises. An older kernel may have them
// too.
func TestProbe(t *testing.T) {
	nettest.NeedBPF(t)
	f, err := Kernel()
	if err != nil && !errors.Is(err, bpfobj.ErrNotSupported) {
		t.Error(err)
	}
	var name unix.Utsname
	errtest.Must(t, unix.Uname(&name))

	var major, minor int
	release := unix.ByteSliceToString(name.Release[:])
	if n, err := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 {
		t.Fatalf("kernel %q: %v", release, err)
	}

	t.Logf("kernel %s: %+v, %v", release, f, err)
	found := func(what string) bool {
		return err == nil || !strings.Contains(err.Error(), what)
	}
	for _, c := range []struct {
		major, minor int
		what         string
		found        bool
	}{
		{5, 6, "batches of hash maps", found("batches of hash maps")},
		{5, 8, "programs at getpeername", found("programs at getpeername")},
		{5, 8, "cookies of network namespaces", found("cookies of network namespaces")},
		{5, 13, "batches of tries", found("batches of tries")},
		{5, 18, "bpf_set_retval", f.SetRetval},
		{6, 6, "tcx", f.TCX},
	} {
		if (major > c.major || major == c.major && minor >= c.minor) && !c.found {
			t.Errorf("Linux %s has %s (%d.%d), which was not found", release, c.what, c.major,
				c.minor)
		}
	}
}

func TestRealTimeKernelsAreRefused(t *testing.T) {
	for version, refused := range map[string]bool{
		"#1 SMP PREEMPT_RT Debian 6.1.158-1 (2026-01-10)":           true,
		"#1 SMP PREEMPT_DYNAMIC Debian 6.12.57-1 (2026-01-10)":      false,
		"#33~22.04.1-Ubuntu SMP PREEMPT_RT Thu Feb 26 10:00:00 UTC": true,
		"": false,
	} {
		err := realTime(version)
		if errors.Is(err, bpfobj.ErrNotSupported) != refused {
			t.Errorf("%q: %v", version, err)
		}
		if refused && !strings.Contains(err.Error(), "use a kernel without PREEMPT_RT") {
			t.Errorf("the error names no remedy: %v", err)
		}
	}
}

func TestFeatureErrorSaysWhatToDo(t *testing.T) {
	err := error(&FeatureError{"programs at getpeername", "5.8", "use a newer kernel",
		ebpf.ErrNotSupported})
	if !errors.Is(err, bpfobj.ErrNotSupported) || !errors.Is(err, ebpf.ErrNotSupported) {
		t.Error("cannot be told apart")
	}
	if want := "not supported by this kernel: programs at getpeername (Linux 5.8): not " +
		"supported: " +
		"use a newer kernel"; err.Error() != want {
		t.Errorf("got %s", err)
	}
}
