package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func policyTryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "try",
		Short: "Show which connections policies would end, before they are written",
		Long: `It reads NetworkPolicies and ClusterNetworkPolicies from a file and changes nothing.
veild makes a plan as if they were at the API server: it adds new policies, replaces policies with
the same name, and leaves out the policies of --delete. It evaluates each known connection of its
pods with the present and the new plan, as when policies change.

With policy none, veild keeps no pods and no policies. With --hand-over, veilctl reads them from the
API server with your rights and hands them to veild. The result then shows what would end if the
policies of the API server, with your changes, came in force. -f and --delete are then optional.
Nodes with policy kubernetes use what they keep.

ENDS lists connections that are allowed now and would end. PASSES lists connections that are denied
now and would be allowed. Most of these are samples of dropped packets, see veilctl drops. A row
counts the connections and drops of one pod with one peer on the server's port. A pod has at most 32
rows in each list; "others" counts the rest. "(unknown)" marks an address of a pod that veild does
not know. If that pod is a peer of a policy, the connection stays.

Known connections are those that the node tracks now, and closed ones for up to two minutes. Clients
without a connection are not included. Each node evaluates its own pods.

The exit status is 0 if no connection would end, 1 if connections would end, a policy would deny
more than is written, or the try failed, 2 if the command line is wrong, and 3 if veild does not
answer.`,
		Example: `veilctl policy try -f new.yaml
kubectl get networkpolicy -n shop -o yaml | sed s/8080/8081/ | veilctl policy try -f -
veilctl policy try -f new.yaml --cluster -o json | jq '.nodes[].answer.ends[]'
veilctl policy try --delete NetworkPolicy/shop/web
veilctl policy try --hand-over --cluster    # before policy: kubernetes is set`,
	}
	fs := cmd.Flags()
	file := fs.StringP("file", "f", "", "`file` of policies, YAML or JSON; - is standard input")
	deleted := fs.StringArray("delete", nil, "count this policy as deleted, "+
		"`KIND/NAMESPACE/NAME`\nor ClusterNetworkPolicy/NAME; repeatable")
	namespace := fs.StringP("namespace", "n", "", "`namespace` of policies without one")
	hand := fs.Bool(handOver, false, handOverUsage)
	in := verb.Input{Flags: []string{"file", "delete", "namespace", handOver}}
	in.Read = func(ctx context.Context, open func() (*remote.Cluster, error)) ([]byte, error) {
		if *file == "" && len(*deleted) == 0 && !*hand {
			return nil, fmt.Errorf("write -f FILE, --delete KIND/NAMESPACE/NAME, or both: %w",
				verb.ErrUsage)
		}
		w, err := written(cmd.InOrStdin(), *file, *namespace, *deleted)
		if err == nil && *hand {
			w.Handed, err = readHanded(ctx, open)
		}
		if err == nil {
			err = w.Check()
		}
		if err != nil {
			return nil, err
		}
		return json.Marshal(w)
	}
	return verb.OnNodeWith(cmd, in, policyTry)
}

// readHanded returns the objects of the cluster that the flags select.
func readHanded(ctx context.Context, open func() (*remote.Cluster, error)) (*policy.Handed, error) {
	k, err := open()
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", handOver, err)
	}
	return handed(ctx, k)
}

// written returns the policies that the flags name. It reads stdin only if file is "-".
func written(stdin io.Reader, file, namespace string, deleted []string) (w policy.Written,
	err error) {
	for _, text := range deleted {
		r, err := policy.ParseRef(text)
		if err != nil {
			return w, fmt.Errorf("--delete %w: %w", err, verb.ErrUsage)
		}
		w.Delete = append(w.Delete, r)
	}

	if file != "" {
		in := stdin
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return w, fmt.Errorf("-f: %w", err)
			}
			defer f.Close()
			in = f
		}
		if err := read(in, namespace, &w); err != nil {
			return w, fmt.Errorf("-f %s: %w", file, err)
		}
	}
	return w, nil
}

func policyTry(c verb.Call, socket string) error {
	var t known.Tried
	if err := verb.PostPage(c.Ctx, socket, telemetry.PolicyTryPage, c.Input, &t); err != nil {
		return err
	}
	return c.Print(t, len(t.Ends)+len(t.Problems) > 0, func() error { return showTried(c.Out, t) })
}

func showTried(w io.Writer, t known.Tried) error {
	for _, p := range t.Problems {
		fmt.Fprintln(w, "PROBLEM", p)
	}
	for _, n := range t.Notes {
		fmt.Fprintln(w, "NOTE", n)
	}
	for _, l := range []struct {
		title string
		rows  []trial.Row
	}{{"ENDS", t.Ends}, {"PASSES", t.Passes}} {
		if len(l.rows) == 0 {
			continue
		}
		fmt.Fprintln(w, l.title)
		if err := showRows(w, l.rows); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}

	ends := 0
	for _, r := range t.Ends {
		ends += r.Connections
	}
	fmt.Fprintf(w, "Node %s: %d of %d known connections of its pods would end, %d stay",
		t.Node, ends, t.Connections, t.Same)
	if t.Denied > 0 {
		fmt.Fprintf(w, ", %d are denied before and after", t.Denied)
	}
	if t.Unknown > 0 {
		fmt.Fprintf(w, "; in %d, the other pod is unknown", t.Unknown)
	}
	fmt.Fprintln(w, ".")
	if t.Drops == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "%d of the last %d packets that policies dropped would pass.\n",
		t.Drops-t.DropsDenied, t.Drops)
	return err
}

func showRows(w io.Writer, rows []trial.Row) error {
	var out [][]string
	for _, r := range rows {
		peer, port := r.Peer, r.Protocol
		if r.PeerUnknown {
			peer += " (unknown)"
		}
		if r.Port != 0 {
			port += fmt.Sprint("/", r.Port)
		}
		out = append(out, []string{r.Pod, verb.OrDash(r.Direction), peer, verb.OrDash(port),
			fmt.Sprint(r.Connections), fmt.Sprint(r.Drops), verb.OrDash(r.Reason),
			verb.OrDash(verb.AndMore(r.Policies, r.MorePolicies))})
	}
	return verb.Table(w, "POD | DIRECTION | PEER | PORT | CONNECTIONS | DROPS | REASON | POLICIES", out)
}
