package keeper

import (
	"errors"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// A container without the node's tree gets an error, and nothing is attached to its own part.
func TestPartOfTheTreeOfCgroups(t *testing.T) {
	group := nettest.NewCgroup(t)
	if err := wholeTree(group); !errors.Is(err, errPartOfTree) ||
		!strings.Contains(err.Error(), "manifests/components/services") ||
		!strings.Contains(err.Error(), "manifests/components/api-path") {
		t.Errorf("a group of the tree: %v", err)
	}
	cfg := config.Config{}
	cfg.Services.Cgroup = group
	if path, err := cgroupOf(cfg); err != nil || path != group {
		t.Errorf("a group that was configured: %q, %v", path, err)
	}
	if root, err := bpfmaps.FindCgroup(); err == nil {
		t.Logf("%s: %v", root, wholeTree(root))
	}
}
