package podtest

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// Leftovers is everything of pods in the calling thread's namespaces: links,
// host routes, records, and host-local's reservations, a line for each.
func Leftovers(podDir, ipamDir string) ([]string, error) {
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var lines []string
	links, err := h.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Attrs().Group == config.PodGroup {
			lines = append(lines, "link "+l.Attrs().Name)
		}
	}
	for _, table := range []int{unix.RT_TABLE_MAIN, config.TablePod} {
		routes, err := h.RouteListFiltered(nl.FamilyAll, &nl.Route{Table: table, Protocol: config.RouteProtoPod}, nl.FilterTable|nl.FilterProtocol)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Table == table && r.Protocol == config.RouteProtoPod {
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
			if base := filepath.Base(f); base != "lock" && !strings.HasPrefix(base, "last_reserved") {
				lines = append(lines, "file "+f)
			}
		}
	}
	return lines, nil
}
