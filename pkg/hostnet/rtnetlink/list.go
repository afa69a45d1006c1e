package rtnetlink

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/sorted"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Routes lists the routes of Kubeveil in a table. names holds the names of links by index. If the
// table has routes of our protocol that Route cannot represent, h lists it again; see FromLibrary.
func (s *Socket) Routes(h *nl.Handle, family, table int, names map[int]string) ([]Route, error) {
	var routes []Route
	odd := false
	nameOf := func(index int) string {
		if name := names[index]; name != "" {
			return name
		}
		return fmt.Sprintf("#%d", index)
	}
	err := s.Dump(byte(family), table, abi.RouteProtoNode, 0, func() func([]byte) {
		routes, odd = nil, false
		return func(body []byte) {
			r, _, proto, _, ok := ReadRoute(body, nameOf)
			if !ok || r.Device == OddDevice {
				odd = true
			} else if r.Table == table && proto == abi.RouteProtoNode {
				routes = append(routes, r)
			}
		}
	})
	if odd && err == nil {
		return oddRoutes(h, family, table, names)
	}

	if err := nl.Err(err); errors.Is(err, nl.ErrNotFound) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // A table without routes does not exist.
	} else if err != nil {
		return nil, fmt.Errorf("list routes of table %d: %w", table, err)
	}
	return routes, nil
}

// oddRoutes is Routes for a table that has routes of our protocol which ReadRoute cannot represent.
func oddRoutes(h *nl.Handle, family, table int, names map[int]string) (routes []Route, err error) {
	filter := &nl.Route{Table: table, Protocol: abi.RouteProtoNode}
	all, err := h.RouteListFiltered(family, filter, nl.FilterTable|nl.FilterProtocol)
	if err != nil {
		return nil, fmt.Errorf("list routes of table %d: %w", table, err)
	}
	for _, r := range all {
		routes = append(routes, FromLibrary(r, family, names))
	}
	return routes, nil
}

// Replace returns routes with fresh in place of gone. All are in canonical order.
func Replace(routes, gone, fresh []Route) []Route {
	gone, fresh, _ = sorted.Diff(gone, fresh, len(gone)+len(fresh), CompareRoutes,
		func(a, b Route) bool { return a == b })
	if len(gone) == 0 && len(fresh) == 0 {
		return routes
	}

	out := make([]Route, 0, len(routes)+len(fresh))
	for len(gone) > 0 || len(fresh) > 0 {
		remove := len(fresh) == 0 ||
			len(gone) > 0 && CompareRoutes(gone[0], fresh[0]) < 0
		next := fresh
		if remove {
			next = gone
		}
		i, found := slices.BinarySearchFunc(routes, next[0], CompareRoutes)
		out, routes = append(out, routes[:i]...), routes[i:]
		switch {
		case remove:
			if found {
				routes = routes[1:]
			}
			gone = gone[1:]
		default:
			out, fresh = append(out, fresh[0]), fresh[1:]
		}
	}
	return append(out, routes...)
}

// ByKey iterates over two lists in canonical order, one identity after another. It yields the
// routes of the identity in both lists.
func ByKey(a, b []Route) iter.Seq2[[]Route, []Route] {
	return func(yield func(a, b []Route) bool) {
		a, b := a, b
		for len(a) > 0 || len(b) > 0 {
			var sameA, sameB []Route
			c := compareFirst(a, b)
			if c <= 0 {
				sameA, a = cutSame(a)
			}
			if c >= 0 {
				sameB, b = cutSame(b)
			}
			if !yield(sameA, sameB) {
				return
			}
		}
	}
}

// compareFirst compares the identities of the first routes; an empty list sorts last.
func compareFirst(a, b []Route) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return CompareKeys(a[0], b[0])
}

// cutSame splits off the leading routes that have the identity of the first.
func cutSame(routes []Route) (same, rest []Route) {
	n := 1
	for n < len(routes) && CompareKeys(routes[0], routes[n]) == 0 {
		n++
	}
	return routes[:n], routes[n:]
}
