package policy

import (
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/trace"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func policyTraceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace FROM TO",
		Short: "Show which policy allows a connection, and what the kernel decides",
		Long: `FROM and TO are pods as NAMESPACE/NAME, or addresses. The node of FROM decides its
egress, and the node of TO its ingress. A node answers only for its own pods, and names the node
that decides the other side. A connection is allowed if both sides allow it. With --cluster, it runs
on the nodes of both pods, which it reads from the API server.

It evaluates the plan in force, and also the rules and sets that the kernel returns. If the results
differ, this is an error of Kubeveil, or another program changed the table. The answer is about the
first packet of a connection. Later packets are not checked again, but a connection ends when a
policy no longer allows it.

With --error-about, the answer is about an ICMP error from FROM to TO. The error quotes a packet of
a known connection that TO sent to the pod or address end. Policies do not apply to such an error.
It passes if its sender is related to the quoted packet.

The address of a service is translated before policies apply. Name a backend instead: veilctl
service trace and kubectl get endpointslices show the backends.

The exit status is 0 if plan and kernel agree, whether they allow or deny, 1 if they differ or this
node cannot answer, 2 if the command line is wrong, and 3 if veild does not answer.`,
		Example: `veilctl policy trace shop/client shop/web -p tcp/8080
veilctl policy trace shop/web 10.0.0.10 -p udp/53
veilctl policy trace shop/mute shop/client --error-about shop/web
veilctl policy trace 192.0.2.7 shop/web -p icmp -o json | jq '.paths[].sides[] | .kernel'`,
	}
	port := cmd.Flags().StringP("port", "p", "",
		"protocol and destination `port`: tcp/8080, udp/53, sctp/9, or icmp")
	about := cmd.Flags().String("error-about", "",
		"trace an ICMP error about a packet of TO to this `end`")
	trace := func(c verb.Call, socket string) error { return policyTrace(c, socket, *port, *about) }
	return verb.NamesOnNode(verb.OnNodesOf(cmd, nodesOfPods, trace), 2, judgedPods)
}

func policyTrace(c verb.Call, socket, port, about string) error {
	if len(c.Args) != 2 {
		return fmt.Errorf("name two ends, such as shop/client shop/web: %w", verb.ErrUsage)
	}
	ends := c.Args
	if about != "" {
		if port != "" && !strings.EqualFold(port, "icmp") {
			return fmt.Errorf("--error-about is about ICMP errors: leave out -p %s: %w", port,
				verb.ErrUsage)
		}
		ends, port = append(slices.Clone(ends), about), "icmp"
	}
	for _, end := range ends {
		if _, err := netip.ParseAddr(end); err != nil && !isPodName(end) {
			return fmt.Errorf("%q is neither a pod nor an address: write NAMESPACE/NAME, such as "+
				"shop/web, or an address: %w", end, verb.ErrUsage)
		}
	}
	proto, number, err := parsePort(port)
	if err != nil {
		return err
	}

	query := url.Values{"from": {c.Args[0]}, "to": {c.Args[1]},
		"protocol": {strconv.Itoa(int(proto))}, "port": {strconv.Itoa(int(number))}}
	if about != "" {
		query.Set("about", about)
	}
	var t trace.Trace
	if err := verb.FetchPage(c.Ctx, socket, telemetry.PolicyTracePath+"?"+query.Encode(),
		&t); err != nil {
		return err
	}
	return c.Print(t, t.Differs, func() error { return showTrace(c.Out, t) })
}

// parsePort parses a protocol and a port, such as tcp/8080, or icmp, which has no port.
func parsePort(text string) (policy.Proto, uint16, error) {
	const icmp = 1
	name, number, _ := strings.Cut(text, "/")
	protos := map[string]policy.Proto{"tcp": policy.TCP, "udp": policy.UDP, "sctp": policy.SCTP}
	proto, known := protos[strings.ToLower(name)]
	switch {
	case strings.EqualFold(text, "icmp"):
		return icmp, 0, nil
	case text == "":
		return 0, 0, fmt.Errorf("name the port: -p tcp/8080, udp/53, sctp/9, or icmp: %w",
			verb.ErrUsage)
	case !known:
		return 0, 0, fmt.Errorf("-p %s: write tcp/8080, udp/53, sctp/9, or icmp: %w", text,
			verb.ErrUsage)
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || port == 0 {
		return 0, 0, fmt.Errorf("-p %s: write a port from 1 to 65535, such as %s/8080: %w", text,
			strings.ToLower(name), verb.ErrUsage)
	}
	return proto, uint16(port), nil
}

func showTrace(w io.Writer, t trace.Trace) error {
	for i, p := range t.Paths {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s -> %s, by node %s: %s\n", p.From, p.To, t.Node, verdictOf(p))
		var rows [][]string
		for _, s := range p.Sides {
			plan, kernel := "elsewhere", "elsewhere"
			if s.Here {
				plan, kernel = s.Plan, s.Kernel
			} else if s.Pod == "" {
				plan, kernel = "-", "-"
			}
			rows = append(rows, []string{s.Direction, verb.OrDash(s.Pod), plan, kernel,
				reasonOf(s)})
		}
		if err := verb.Table(w, "SIDE | POD | PLAN | KERNEL | WHY", rows); err != nil {
			return err
		}
		for _, s := range p.Sides {
			if s.Rule != "" {
				fmt.Fprintf(w, "%s decided by %s\n", s.Direction, s.Rule)
			}
			if s.Differs {
				fmt.Fprintf(w, "ERROR %s: the plan decides %s, the kernel %s; veild restores "+
					"the table when it notices: repeat the trace, and report this if it stays\n",
					s.Direction, s.Plan, s.Kernel)
			}
		}
	}
	if t.Note != "" {
		fmt.Fprintln(w, "NOTE", t.Note)
	}
	return nil
}

// verdictOf returns in words the verdict of the sides that this node decides.
func verdictOf(p trace.Path) string {
	allowed, elsewhere := true, false
	for _, s := range p.Sides {
		elsewhere = elsewhere || !s.Here && s.Pod != ""
		allowed = allowed && (!s.Here || s.Plan == policy.Allow.String())
	}
	switch {
	case !allowed:
		return "denied"
	case elsewhere:
		return "allowed here; another node also decides"
	}
	return "allowed"
}

// reasonOf returns the policies that decide the verdict of a side.
func reasonOf(s trace.Side) string {
	switch {
	case s.Cluster != "": // a ClusterNetworkPolicy decided, before or without NetworkPolicies
	case len(s.Allowing) > 0:
		return "allowed by " + verb.AndMore(s.Allowing, s.MoreAllowing)
	case len(s.Isolating) > 0:
		return "isolated by " + verb.AndMore(s.Isolating, s.MoreIsolating) + "; " + s.Why
	}
	return verb.OrDash(s.Why)
}
