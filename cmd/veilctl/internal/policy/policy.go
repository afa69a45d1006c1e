package policy

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Command returns the parent of the verbs about NetworkPolicy.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Short: "Show NetworkPolicy on nodes, and try policies",
		Example: "  veilctl policy show shop/web",
	}
	cmd.AddCommand(policyListCommand(), policyShowCommand(), policyTraceCommand(),
		policyTryCommand(), policySuggestCommand(), policyWaitCommand())
	verb.Choice(cmd)
	return cmd
}

func policyListCommand() *cobra.Command {
	return verb.OnNode(&cobra.Command{
		Use: "list", Short: "List policies that select pods of this node, and which are in force",
		Long: `A policy that selects no pod of this node is not listed. ENFORCED is "no" where a policy
denies everything that it isolates because this version cannot read it, where it exceeds a bound,
and while a change is not in force yet. A line PROBLEM names the reason.

ALLOWS counts known connections for each rule that allows them, so one connection may count several
times. DENIED counts the samples of packets that the policy denied since veild began. At most 200
packets per second and reason are sampled. -o json has both counts for each rule.

The exit status is 0 if all policies are in force as written, 1 if one is not or this node enforces
no policies, 2 if the command line is wrong, and 3 if veild does not answer.`,
		Example: `veilctl policy list
veilctl policy list -o json | jq '.policies[] | select(.enforced | not)'`,
	}, policyList)
}

func policyShowCommand() *cobra.Command {
	return verb.NamesOnNode(verb.OnNodesOf(&cobra.Command{
		Use:   "show NAMESPACE/NAME",
		Short: "Show in words what the policies of a pod of this node allow",
		Long: `It shows the pod's group in nftables table kubeveil_policy, and each peer and port that a
policy allows. MEMBERS counts the addresses that the selectors of the peers match now; 0 means that
no peer is allowed. A mute pod exchanges packets only with its own node. With services.hostRouting
ebpf, "Fast path" shows whether the pod's packets bypass netfilter. Packets of pods that a policy
selects never do.

The exit status is 0 if the pod's policies are in force as written, 1 if they are not, if the pod is
mute or not on this node, or if this node enforces no policies, 2 if the command line is wrong, and
3 if veild does not answer.`,
		Example: `veilctl policy show shop/web
veilctl policy show shop/web --cluster      # finds its node`,
	}, nodesOfPods, policyShow), 1, judgedPods)
}

func policyList(c verb.Call, socket string) error {
	var l keeper.List
	if err := verb.FetchPage(c.Ctx, socket, telemetry.PoliciesPath+"?counts=true",
		&l); err != nil {
		return err
	}

	wrong := len(l.Problems) > 0
	for _, v := range l.Policies {
		wrong = wrong || !v.Enforced
	}
	return c.Print(l, wrong, func() error { return showPolicies(c.Out, l) })
}

func showPolicies(w io.Writer, l keeper.List) error {
	rows := [][]string{}
	problems := l.Problems
	for _, v := range l.Policies {
		enforced := "yes"
		if !v.Enforced {
			enforced = "no"
			problems = append(problems, v.Policy+": "+v.Problem)
		}
		allowed, denied := 0, uint64(0)
		for _, r := range v.Rules {
			allowed, denied = allowed+r.Allowed, denied+r.Denied
		}
		rows = append(rows, []string{v.Policy, v.Tier, verb.OrDash(strings.Join(v.Directions, ",")),
			fmt.Sprint(len(v.Pods) + v.MorePods), enforced, fmt.Sprint(allowed), fmt.Sprint(denied)})
	}

	if len(rows) == 0 && l.Listed {
		fmt.Fprintf(w, "No policy selects a pod of node %s.\n", l.Node)
	} else if err := verb.Table(w, "POLICY | TIER | DIRECTIONS | PODS | ENFORCED | ALLOWS | DENIED",
		rows); err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(w, "PROBLEM", p)
	}
	for _, n := range []struct {
		count uint64
		what  string
	}{{uint64(l.LeftOut), "policies are beyond a bound, and not listed"},
		{l.AllowedLeftOut, "known connections are beyond a bound, and not counted in ALLOWS"},
		{l.DeniedLeftOut, "samples of denied packets are beyond a bound, and not counted in DENIED"}} {
		if n.count > 0 {
			fmt.Fprintln(w, n.count, n.what)
		}
	}
	return nil
}

// onePod returns the name of the only argument as NAMESPACE/NAME.
func onePod(c verb.Call) (string, error) {
	if len(c.Args) != 1 || !isPodName(c.Args[0]) {
		return "", fmt.Errorf("name one pod as NAMESPACE/NAME, such as shop/web: %w", verb.ErrUsage)
	}
	return c.Args[0], nil
}

// isPodName reports whether text is of the form NAMESPACE/NAME.
func isPodName(text string) bool {
	namespace, name, ok := strings.Cut(text, "/")
	return ok && namespace != "" && name != "" && !strings.Contains(name, "/")
}

func policyShow(c verb.Call, socket string) error {
	name, err := onePod(c)
	if err != nil {
		return err
	}
	var v policy.PodView
	if err := verb.FetchPage(c.Ctx, socket, telemetry.PolicyPodPath+"?pod="+url.QueryEscape(name),
		&v); err != nil {
		return err
	}
	wrong := v.Mute || !v.Enforced || len(v.Problems) > 0
	return c.Print(v, wrong, func() error { return showPod(c.Out, v) })
}

func showPod(w io.Writer, v policy.PodView) error {
	var addrs []string
	for _, a := range v.Addrs {
		addrs = append(addrs, a.String())
	}
	rows := [][]string{{"Pod", v.Pod}, {"Addresses", verb.OrDash(strings.Join(addrs, ", "))},
		{"Group", verb.OrDash(v.Group)}, {"Policies", verb.OrDash(strings.Join(v.Policies, ", "))}}
	if len(v.ClusterPolicies) > 0 {
		rows = append(rows, []string{"Of the cluster", strings.Join(v.ClusterPolicies, ", ")})
	}
	switch {
	case v.Mute:
		rows = append(rows, []string{"MUTE", v.Why})
	case v.Why != "":
		rows = append(rows, []string{"Note", v.Why})
	}
	if f := v.FastPath; f != nil && f.Has {
		rows = append(rows, []string{"Fast path", "yes"})
	} else if f != nil {
		rows = append(rows, []string{"Fast path", "no: " + f.Why})
	}
	for _, p := range v.Problems {
		rows = append(rows, []string{"PROBLEM", p})
	}

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\n", r[0], r[1])
	}
	if err := t.Flush(); err != nil || v.Group == "" {
		return err
	}
	if err := showSide(w, "Ingress", "FROM", v.Ingress); err != nil {
		return err
	}
	return showSide(w, "Egress", "TO", v.Egress)
}

// showSide prints one direction of a pod: its tiers in the order of evaluation.
func showSide(w io.Writer, title, peers string, s policy.SideView) error {
	if len(s.Admin) > 0 {
		fmt.Fprintf(w, "\n%s, tier Admin: the first line that matches decides\n", title)
		if err := showLines(w, peers, s.Admin, true); err != nil {
			return err
		}
	}

	left := ""
	if len(s.Admin) > 0 {
		left = " of the rest"
	}
	nothing, only := "", ""
	if s.OwnNode {
		const node = " its own node (policyOwnNode allow)"
		nothing, only = " but"+node, ", and"+node
	}
	switch by := strings.Join(s.By, ", "); {
	case s.Isolated && len(s.Lines) == 0:
		_, err := fmt.Fprintf(w, "\n%s: isolated by %s; nothing%s is allowed%s\n", title, by, left,
			nothing)
		return err
	case s.Isolated:
		fmt.Fprintf(w, "\n%s: isolated by %s; only this%s is allowed%s\n", title, by, left, only)
		return showLines(w, peers, s.Lines, false)
	case len(s.Baseline) > 0:
		fmt.Fprintf(w, "\n%s, tier Baseline: the first line that matches decides; everything "+
			"else is allowed\n", title)
		return showLines(w, peers, s.Baseline, true)
	}
	_, err := fmt.Fprintf(w, "\n%s: no policy isolates it; everything%s is allowed\n", title, left)
	return err
}

func showLines(w io.Writer, peers string, lines []policy.LineView, actions bool) error {
	head := peers + " | PORTS | MEMBERS | POLICY"
	if actions {
		head = "ACTION | " + head
	}
	var rows [][]string
	for _, l := range lines {
		members := "-"
		if l.Members >= 0 {
			members = fmt.Sprint(l.Members)
		}
		row := []string{l.Peers, l.Ports, members, l.Policy}
		if actions {
			row = append([]string{l.Action}, row...)
		}
		rows = append(rows, row)
	}
	return verb.Table(w, head, rows)
}

// judgedPods returns the names of the pods of this node that policies select.
func judgedPods(ctx context.Context, socket string) (names []string, err error) {
	var l keeper.List
	if err := verb.FetchPage(ctx, socket, telemetry.PoliciesPath, &l); err != nil {
		return nil, err
	}
	for _, p := range l.Policies {
		names = append(names, p.Pods...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
