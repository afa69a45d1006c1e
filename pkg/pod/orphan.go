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

// Orphans are the host links of attachments that network owns no longer: of
// what is found in PodDir, or as a link in PodGroup with a name of ours, those
// that are not in valid (names as HostLink gives) and whose record, where one
// can be read, is of this network. Other networks' attachments and foreign links
// are never among them. Each is for Detach.
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

	for _, name := range links {
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

// ours reports whether a name has the form that HostLink gives.
func ours(link string) bool {
	digits, ok := strings.CutPrefix(link, abi.PodLinkPrefix)
	return ok && len(digits) == 11 && strings.Trim(digits, "0123456789abcdef") == ""
}
