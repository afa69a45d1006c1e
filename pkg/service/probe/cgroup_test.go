package probe

import (
	"errors"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// In a container that does not see the node's tree, CgroupOf returns an error, so nothing is
// attached to the container's own part.
func TestPartOfTheTreeOfCgroups(t *testing.T) {
	group := nettest.NewCgroup(t)
	if err := wholeTree(group); !errors.Is(err, errPartOfTree) ||
		!strings.Contains(err.Error(), "component services") ||
		!strings.Contains(err.Error(), "api-path") {
		t.Errorf("a group of the tree: %v", err)
	}
	cfg := config.Config{}
	cfg.Services.Cgroup = group
	if path, err := CgroupOf(cfg); err != nil || path != group {
		t.Errorf("a group that was configured: %q, %v", path, err)
	}
	if root, err := FindCgroup(); err == nil {
		t.Logf("%s: %v", root, wholeTree(root))
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
				t.Errorf("mount point %q, %v, want %q", got, err, c.want)
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
