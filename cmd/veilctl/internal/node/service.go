package node

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Service returns the parent of the verbs about services.
func Service() *cobra.Command {
	cmd := &cobra.Command{
		Use: "service", Short: "Show services of nodes, with serviceProxy ebpf",
		Example: "  veilctl service trace 10.96.0.10:53 --udp",
	}
	cmd.AddCommand(serviceListCommand(), serviceShowCommand(), serviceTrace())
	verb.Choice(cmd)
	return cmd
}

func serviceListCommand() *cobra.Command {
	return verb.OnNode(&cobra.Command{
		Use: "list", Short: "List services in the table: addresses and backends",
		Long: `It prints a line for each address. BACKENDS is the number of backends that get new
connections, and the number of all known backends. If another service already has an address, the
line names that service. The exit status is 1 if a service is not served as its object requests.`,
		Example: `veilctl service list
veilctl service list -o json | jq '.[] | select(.problems)'`,
	}, serviceList)
}

func serviceShowCommand() *cobra.Command {
	return verb.NamesOnNode(verb.OnNode(&cobra.Command{
		Use: "show NAMESPACE/NAME", Short: "Show one service: each address and each backend",
		Example: "veilctl service show kube-system/kube-dns",
	}, serviceShow), 1, serviceNames)
}

// allServices reads the list of services, which veild returns in several pages.
func allServices(ctx context.Context, socket string) ([]service.View, error) {
	views := []service.View{}
	for query := ""; ; query = "?after=" + url.QueryEscape(views[len(views)-1].Service.String()) {
		var page []service.View
		if err := verb.FetchPage(ctx, socket, telemetry.ServicesPath+query, &page); err != nil {
			return nil, err
		}
		if len(page) == 0 {
			return views, nil
		}
		views = append(views, page...)
	}
}

// serviceNames returns the names of the services in the table of this node.
func serviceNames(ctx context.Context, socket string) (names []string, err error) {
	views, err := allServices(ctx, socket)
	for _, v := range views {
		if v.Service.Namespace != "" {
			names = append(names, v.Service.String())
		}
	}
	return names, err
}

func serviceList(c verb.Call, socket string) error {
	views, err := allServices(c.Ctx, socket)
	if err != nil {
		return err
	}

	var rows [][]string
	wrong := false
	for _, v := range views {
		wrong = wrong || len(v.Problems) > 0
		for _, f := range v.Frontends {
			if f.Scope == service.Outside && sameInside(v, f) {
				continue
			}
			rows = append(rows, []string{serviceName(v.Service), f.Kind, f.Addr.String(),
				f.Protocol.String(), fromOf(v, f), backendCount(f), noteOf(v.Service, f)})
		}
	}

	return c.Print(views, wrong, func() error {
		const head = "SERVICE | KIND | ADDRESS | PROTOCOL | FROM | BACKENDS | NOTE"
		if err := verb.Table(c.Out, head, rows); err != nil {
			return err
		}
		for _, v := range views {
			for _, p := range v.Problems {
				fmt.Fprintln(c.Out, "PROBLEM", p)
			}
		}
		return nil
	})
}

// sameInside reports whether a frontend for outside equals the frontend for inside with the same
// address, so that both are shown as one.
func sameInside(v service.View, f service.FrontendView) bool {
	i := slices.IndexFunc(v.Frontends, func(o service.FrontendView) bool {
		return o.Scope == service.Inside && o.Addr == f.Addr && o.Protocol == f.Protocol
	})
	return i >= 0 && v.Frontends[i].Local == f.Local && !f.Ranged
}

// fromOf returns in words which clients a frontend is for.
func fromOf(v service.View, f service.FrontendView) string {
	for _, o := range v.Frontends {
		if f.Scope == service.Inside && o.Scope == service.Outside && o.Addr == f.Addr &&
			o.Protocol == f.Protocol && sameInside(v, o) {
			return "anywhere"
		}
	}
	return f.Scope.String()
}

// serviceName returns the name of a service. Entry 0 is not a Service of Kubernetes and has a name
// in parentheses.
func serviceName(n service.Name) string {
	if n.Namespace == "" {
		return "(API servers)"
	}
	return n.String()
}

func backendCount(f service.FrontendView) string {
	return fmt.Sprintf("%d of %d", f.Chosen, f.Known)
}

func noteOf(owner service.Name, f service.FrontendView) string {
	var notes []string
	add := func(yes bool, text string) {
		if yes {
			notes = append(notes, text)
		}
	}
	add(f.Owner != owner, serviceName(f.Owner)+" has this address")
	add(f.Local, "Local")
	add(f.Affinity > 0, "affinity "+f.Affinity.Round(time.Second).String())
	add(f.Drop, "dropped: no backend is on this node")
	add(f.Ranged, fmt.Sprintf("only from %d ranges", len(f.Sources)))
	return verb.OrDash(strings.Join(notes, ", "))
}

func serviceShow(c verb.Call, socket string) error {
	if len(c.Args) != 1 || strings.Count(c.Args[0], "/") != 1 {
		return fmt.Errorf("name one service as NAMESPACE/NAME, as veilctl service list does: %w",
			verb.ErrUsage)
	}

	var v service.View
	if err := verb.FetchPage(c.Ctx, socket,
		telemetry.ServicePath+"?name="+url.QueryEscape(c.Args[0]), &v); err != nil {
		return err
	}

	if c.JSON {
		return verb.PrintJSON(c.Out, v)
	}

	for i, f := range v.Frontends {
		if i > 0 {
			fmt.Fprintln(c.Out)
		}
		if err := showFront(c, f); err != nil {
			return err
		}
	}

	for _, p := range v.Problems {
		fmt.Fprintln(c.Out, "PROBLEM", p)
	}

	if len(v.Problems) > 0 {
		return verb.ErrWrong
	}
	return nil
}

func serviceTrace() *cobra.Command {
	cmd := &cobra.Command{
		Use: "trace ADDRESS:PORT", Short: "Show which backend an address gets, and why",
		Long: `It looks up the address in the service table of this node, as a connection does.
Backends without a reason are selected with equal probability. For the others, the reason says why
they are not selected. With --outside, it looks up the address for packets from outside the
cluster, for which other traffic policies apply. With --host, it looks up the address for programs
on the host's network, for which services.apiFrontends applies.`,
		Example: `veilctl service trace 10.96.0.10:53 --udp
veilctl service trace '[fd00:10:96::a]:53'
veilctl service trace 192.0.2.7:30080 --outside`,
	}
	fs := cmd.Flags()
	udp := fs.Bool("udp", false, "look up UDP instead of TCP")
	outside := fs.Bool("outside", false,
		"look up for clients outside the cluster, and for pods of other\n"+
			"nodes that use an address of this node")
	host := fs.Bool("host", false, "look up for programs on the host's network")
	return verb.OnNode(cmd, func(c verb.Call, socket string) error {
		if *host && *outside {
			return fmt.Errorf("give --host or --outside, not both: %w", verb.ErrUsage)
		}
		if len(c.Args) != 1 {
			return fmt.Errorf("name one address with a port: %w", verb.ErrUsage)
		}
		addr, err := netip.ParseAddrPort(c.Args[0])
		if err != nil {
			return fmt.Errorf("%q is not an address with a port, such as 10.96.0.10:53 or "+
				"[fd00::a]:53: %w", c.Args[0], verb.ErrUsage)
		}

		query := url.Values{"addr": {addr.String()}, "protocol": {"TCP"}, "scope": {"inside"}}
		if *udp {
			query.Set("protocol", "UDP")
		}
		if *outside {
			query.Set("scope", "outside")
		}
		if *host {
			query.Set("scope", "host")
		}
		var f service.FrontendView
		if err := verb.FetchPage(c.Ctx, socket, telemetry.TracePath+"?"+query.Encode(),
			&f); err != nil {
			return err
		}
		if c.JSON {
			return verb.PrintJSON(c.Out, f)
		}

		return showFront(c, f)
	})
}

// showFront prints a frontend: its address, the decisions in their order, and each backend.
func showFront(c verb.Call, f service.FrontendView) error {
	from := "from inside the cluster"
	switch f.Scope {
	case service.Outside:
		from = "from outside the cluster"
	case service.Host:
		from = "from the node's own programs"
	}

	fmt.Fprintf(c.Out, "%s %s, %s, is the %s of %s\n", f.Addr, f.Protocol, from, f.Kind,
		serviceName(f.Owner))
	if f.Ranged {
		fmt.Fprintf(c.Out, "only for sources in %v; others are dropped\n", f.Sources)
	}
	if f.Local {
		fmt.Fprintln(c.Out, "only backends on this node: the policy is Local")
	}

	switch chosen := f.Chosen; {
	case chosen == 0 && f.Drop && f.Scope == service.Outside:
		fmt.Fprintln(c.Out, "no backend is on this node: packets from outside are dropped, so "+
			"that a load balancer selects another node; pods of other nodes are refused")
	case chosen == 0 && f.Scope == service.Host:
		fmt.Fprintln(c.Out, "no API server's certificate names the address, so it is not translated")
	case chosen == 0:
		fmt.Fprintln(c.Out, "no backend: connections are refused at once")
	case f.Affinity > 0:
		fmt.Fprintf(c.Out, "a client keeps the backend that it used within the last %s; a new "+
			"client gets one of %d with equal probability\n", f.Affinity, chosen)
	default:
		fmt.Fprintf(c.Out, "each connection gets one of %d with equal probability\n", chosen)
	}

	if len(f.Backends) == 0 {
		return nil
	}

	var rows [][]string
	for _, b := range f.Backends {
		at := verb.OrDash(b.Node)
		if b.Here {
			at += " (here)"
		}
		mark := "no"
		if b.Chosen {
			mark = "yes"
		}
		rows = append(rows, []string{mark, b.Addr.String(), at, b.Why})
	}

	return verb.Table(c.Out, "CHOSEN | BACKEND | NODE | WHY", rows)
}
