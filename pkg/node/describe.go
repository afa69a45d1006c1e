package node

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
)

// describedRoutes bounds the routes of each family that Describe writes.
const describedRoutes = 10000

// Describe writes this node's kernel state for a bug report, including the objects of other
// programs: links, addresses, rules, routes, nftables, pinned BPF objects and the names of CNI
// configurations. It changes nothing and does not need veild. It writes as much as it can; the
// error names what it could not read. The output contains no key, because WireGuard devices appear
// only as links.
func Describe(w io.Writer, confDir string) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()

	var errs []error
	for _, part := range []struct {
		heading string
		write   func(io.Writer) error
	}{
		{"links and addresses", func(w io.Writer) error { return describeLinks(w, h) }},
		{"rules", func(w io.Writer) error { return describeRules(w, h) }},
		{"routes of all tables", func(w io.Writer) error { return describeRoutes(w, h) }},
		{"objects of Kubeveil", describeOurs},
		{"nftables", describeNftables},
		{"BPF objects in " + abi.BPFDir,
			func(w io.Writer) error { return describeFolder(w, abi.BPFDir) }},
		{"CNI configurations in " + confDir,
			func(w io.Writer) error { return describeFolder(w, confDir) }},
	} {
		fmt.Fprintf(w, "# %s\n", part.heading)
		if err := part.write(w); err != nil {
			err = fmt.Errorf("%s: %w", part.heading, err)
			fmt.Fprintln(w, "cannot be read:", err)
			errs = append(errs, err)
		}
		fmt.Fprintln(w)
	}

	return errors.Join(errs...)
}

func describeLinks(w io.Writer, h *nl.Handle) error {
	links, err := h.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		a := l.Attrs()
		fmt.Fprintf(w, "%d %s %s mtu %d group %#x flags %s oper %s txqueue %d parent %d "+
			"master %d\n",
			a.Index, a.Name, l.Type(), a.MTU, a.Group, a.Flags, a.OperState, a.TxQLen,
			a.ParentIndex, a.MasterIndex)
		addrs, err := h.AddrList(l, nl.FamilyAll)
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			fmt.Fprintf(w, "  %s scope %d flags %#x\n", addr.IPNet, addr.Scope, addr.Flags)
		}
	}
	return nil
}

func describeRules(w io.Writer, h *nl.Handle) error {
	for _, family := range []int{nl.FamilyV4, nl.FamilyV6} {
		rules, err := h.RuleList(family)
		if err != nil {
			return err
		}
		for _, r := range rules {
			fmt.Fprintf(w, "%s, goto %d, suppress group %d, type %d\n", r, r.Goto,
				r.SuppressIfgroup, r.Type)
		}
	}
	return nil
}

func describeRoutes(w io.Writer, h *nl.Handle) error {
	for _, family := range []int{nl.FamilyV4, nl.FamilyV6} {
		routes, err := h.RouteListFiltered(family, &nl.Route{Table: unix.RT_TABLE_UNSPEC},
			nl.FilterTable)
		if err != nil {
			return err
		}
		for i, r := range routes {
			if i == describedRoutes {
				fmt.Fprintf(w, "and %d more\n", len(routes)-i)
				break
			}
			fmt.Fprintf(w, "%s type %d metric %d mtu %d\n", r, r.Type, r.Priority, r.MTU)
		}
	}
	return nil
}

func describeOurs(w io.Writer) error {
	h, err := hostnet.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	s, err := h.Read()
	if err == nil {
		_, err = fmt.Fprint(w, s)
	}
	return err
}

func describeNftables(w io.Writer) error {
	// All requests use one socket, because closing a socket delays transactions of nftables.
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return err
	}
	defer func() { _ = c.CloseLasting() }()

	chains, err := c.ListChains()
	if err != nil {
		return err
	}
	for _, chain := range chains {
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return fmt.Errorf("chain %s %s: %w", chain.Table.Name, chain.Name, err)
		}
		fmt.Fprintf(w, "family %d table %s chain %s", chain.Table.Family, chain.Table.Name,
			chain.Name)
		if chain.Hooknum != nil && chain.Priority != nil {
			fmt.Fprintf(w, ", hook %d priority %d", *chain.Hooknum, *chain.Priority)
		}
		if chain.Policy != nil {
			fmt.Fprintf(w, " policy %d", *chain.Policy)
		}
		fmt.Fprintf(w, ": %d rules\n", len(rules))
	}
	return nil
}

// describeFolder lists the names of files. A missing folder is noted and is not an error.
func describeFolder(w io.Writer, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(w, "there is no such folder")
		return nil
	}
	for _, e := range entries {
		fmt.Fprintln(w, e.Name())
	}
	return err
}
