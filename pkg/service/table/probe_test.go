package table

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/pkg/nettest"
)

func TestProbe(t *testing.T) {
	nettest.NeedBPF(t)
	f, err := Probe()
	t.Logf("%+v, %v", f, err)
	if err != nil && !errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
}

func TestFindCgroup(t *testing.T) {
	const mounts = "proc /proc proc rw 0 0\ncgroup2 /own cgroup2 rw 0 0\ncgroup /old cgroup rw 0 0\ncgroup2 /other cgroup2 rw 0 0\nshort\n"
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

// The kernel says which directory of a tree is the machine's root.
func TestPartOfTree(t *testing.T) {
	group := nettest.NewCgroup(t)
	if part, err := PartOfTree(group); err != nil || !part {
		t.Errorf("a group: %t, %v", part, err)
	}
}

func TestFeatureErrorSaysWhatToDo(t *testing.T) {
	err := error(&FeatureError{"programs at getpeername", "5.8", "use a newer kernel", ebpf.ErrNotSupported})
	if !errors.Is(err, ErrNotSupported) || !errors.Is(err, ebpf.ErrNotSupported) {
		t.Error("cannot be told apart")
	}
	if want := "not supported by this kernel: programs at getpeername (Linux 5.8): not supported: use a newer kernel"; err.Error() != want {
		t.Errorf("got %s", err)
	}
}
