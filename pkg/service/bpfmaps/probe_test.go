package bpfmaps

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// TestProbe checks the features that the kernel's version promises. An older kernel may have them
// too.
func TestProbe(t *testing.T) {
	nettest.NeedBPF(t)
	f, err := Probe()
	if err != nil && !errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}

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

func TestFindCgroup(t *testing.T) {
	const mounts = "proc /proc proc rw 0 0\ncgroup2 /own cgroup2 rw 0 0\ncgroup /old cgroup rw 0 " +
		"0\ncgroup2 /other cgroup2 rw 0 0\nshort\n"
	for name, c := range map[string]struct {
		mounts, whole, want string
	}{
		"the whole tree":        {mounts, "/own", "/own"},
		"a part and the whole":  {mounts, "/other", "/other"},
		"parts":                 {mounts, "", "/own"},
		"none of that version":  {"cgroup /old cgroup rw 0 0\n", "/old", ""},
		"nothing that is known": {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := findCgroup(c.mounts, func(path string) bool { return path != c.whole })
			if got != c.want || errors.Is(err, ErrNoCgroup) != (c.want == "") {
				t.Errorf("%q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// The kernel shows which directory of a tree is the machine's root.
func TestPartOfTree(t *testing.T) {
	group := nettest.NewCgroup(t)
	if part, err := PartOfTree(group); err != nil || !part {
		t.Errorf("a group: %t, %v", part, err)
	}
}

func TestFeatureErrorSaysWhatToDo(t *testing.T) {
	err := error(&FeatureError{"programs at getpeername", "5.8", "use a newer kernel",
		ebpf.ErrNotSupported})
	if !errors.Is(err, ErrNotSupported) || !errors.Is(err, ebpf.ErrNotSupported) {
		t.Error("cannot be told apart")
	}
	if want := "not supported by this kernel: programs at getpeername (Linux 5.8): not " +
		"supported: " +
		"use a newer kernel"; err.Error() != want {
		t.Errorf("got %s", err)
	}
}
