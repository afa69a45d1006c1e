package pod

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Orphans returns the host links of attachments that are not in valid, the host links that the
// runtime still uses. It checks the records in PodDir, and the links in PodGroup with names as
// HostLink returns them. It leaves out attachments whose record names another network. The caller
// calls Detach for each.
func (p Paths) Orphans(network string, valid map[string]bool) ([]string, error) {
	found := make(map[string]bool)
	entries, err := os.ReadDir(p.PodDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}

	for _, e := range entries {
		if link, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && ours(link) {
			found[link] = true
		}
	}

	links, err := podLinks()
	if err != nil {
		return nil, err
	}

	for name := range links {
		if ours(name) {
			found[name] = true
		}
	}

	maps.DeleteFunc(found, func(link string, _ bool) bool {
		if valid[link] {
			return true
		}
		r, err := p.Load(link)
		return err == nil && r.Network != network
	})
	return slices.Sorted(maps.Keys(found)), nil
}

// ours reports whether a name has the form that HostLink returns.
func ours(link string) bool {
	digits, ok := strings.CutPrefix(link, abi.PodLinkPrefix)
	return ok && len(digits) == 11 && strings.Trim(digits, "0123456789abcdef") == ""
}
