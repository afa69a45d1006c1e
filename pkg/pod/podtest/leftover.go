package podtest

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Leftovers returns a line for each object of pods in the calling thread's namespaces: links,
// elements of sets, host routes, records, and address reservations of host-local.
func Leftovers(podDir, ipamDir string) ([]string, error) {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var lines []string

	for _, l := range links {
		if l.Attrs().Group == abi.PodGroup {
			lines = append(lines, "link "+l.Attrs().Name)
		}
	}

	elements, err := elements()
	if err != nil {
		return nil, err
	}

	lines = append(lines, elements...)
	for _, table := range []int{unix.RT_TABLE_MAIN, abi.TablePod} {
		routes, err := h.RouteListFiltered(nl.FamilyAll,
			&nl.Route{Table: table, Protocol: abi.RouteProtoPod},
			nl.FilterTable|nl.FilterProtocol)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Table == table && r.Protocol == abi.RouteProtoPod {
				lines = append(lines, fmt.Sprintf("route %s table %d", r.Dst, table))
			}
		}
	}

	for _, pattern := range []string{podDir + "/*.json", ipamDir + "/*/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if base := filepath.Base(f); base != "lock" &&
				!strings.HasPrefix(base, "last_reserved") {
				lines = append(lines, "file "+f)
			}
		}
	}

	return lines, nil
}

// elements returns a line for each element of the pods' sets. It returns none if there is no table.
func elements() ([]string, error) {
	sets, err := nft.Sets(abi.NFTPodTable, func(name string) bool {
		return name == abi.NFTPodSet4 || name == abi.NFTPodSet6
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var lines []string
	for _, s := range sets {
		for _, e := range s.Elements {
			lines = append(lines, fmt.Sprintf("element %x of %s", e.Key, s.Name))
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// AddLink makes a veth called name in the namespace nsFd, with its other end in the calling
// thread's namespace. No record belongs to it.
func AddLink(nsFd int, name string) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	attrs := nl.NewLinkAttrs()
	attrs.Name = "x" + name
	return h.LinkAdd(&nl.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: nl.NsFd(nsFd),
		PeerTxQLen: -1})
}

// LinkIndex returns the index of a link in the calling thread's namespace.
func LinkIndex(name string) (int, error) {
	index := 0
	err := nl.OnLink(name, func(_ *nl.Handle, l nl.Link) error {
		index = l.Attrs().Index
		return nil
	})
	return index, err
}
