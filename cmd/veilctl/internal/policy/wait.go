package policy

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const (
	// waitFirst is the first pause between two requests. Each pause is twice the last one, but at
	// most waitMost.
	waitFirst = 50 * time.Millisecond
	waitMost  = 2 * time.Second
	// compareMost bounds the time in which a node only compares a revision. Then it lists the
	// policies.
	compareMost = time.Second
)

func policyWaitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until a node, or each one, enforces the policies of the API server",
		Long: `It is for scripts that apply a policy and then rely on it. For each request, veild
lists the policies again and compares them with the plan in force. With --revision, veild first
compares only this revision, for up to a second. A policy that cannot be read counts as enforced,
because it denies everything (see veilctl policy list).

With --namespace, it waits only for what judges the pods of this namespace: its NetworkPolicies and
the ClusterNetworkPolicies. Large changes of other namespaces then do not matter.

Without --kubeconfig, --context or --cluster, it waits for the node that it runs on. For a cluster,
it runs veilctl in the pods of veild, on 16 nodes at a time. This needs the rights to list nodes and
pods, and to exec in pods of kube-system, but no open port. A node gets no further request after it
has enforced the policies once. The first nodes list the policies. Later nodes only compare the
revision that an earlier node enforces, and list the policies if theirs differs. A node that does
not answer or has no veild counts as a node that does not enforce the policies.

The exit status is 0 if the policies are enforced, 1 if they are not within the timeout or a node
enforces no policies, 2 if the command line is wrong, and 3 if veild does not answer.`,
		Example: `kubectl apply -f policy.yaml && veilctl policy wait --cluster
kubectl apply -n shop -f policy.yaml && veilctl policy wait --cluster --namespace shop
veilctl policy wait --timeout 10s`,
	}
	timeout := cmd.Flags().Duration("timeout", time.Minute, "the longest `time` to wait")
	var access remote.Access
	access.Register(cmd.Flags())
	all := cmd.Flags().Bool("cluster", false, "wait for all nodes of the cluster")
	revision := cmd.Flags().String("revision", "", "compare this `revision` before veild lists the "+
		"policies (one node)")
	namespace := cmd.Flags().StringP("namespace", "n", "", "wait only for the pods of this "+
		"`namespace`")
	socket := verb.SocketFlag(cmd)
	return verb.Reporting(cmd, func(c verb.Call) error {
		if *timeout <= 0 {
			return fmt.Errorf("--timeout %s: write a time above 0, such as 30s: %w", *timeout,
				verb.ErrUsage)
		}
		if !*all && !access.Given() {
			return policyWait(c, *socket, *timeout, *revision, *namespace)
		}
		if *revision != "" {
			return fmt.Errorf("--revision is for one node: leave it out with --cluster, --kubeconfig "+
				"and --context: %w", verb.ErrUsage)
		}
		cluster, err := access.Open()
		if err != nil {
			return err
		}
		return policyWaitCluster(c, cluster, *timeout, *namespace)
	})
}

func policyWait(c verb.Call, socket string, timeout time.Duration, revision,
	namespace string) error {
	began := time.Now()
	end := began.Add(timeout)
	form := url.Values{}
	if namespace != "" {
		form.Set("namespace", namespace)
	}
	list := telemetry.PolicyProgressPath + "?" + form.Encode()
	page := list
	if revision != "" {
		form.Set("revision", revision)
		page = telemetry.PolicyProgressPath + "?" + form.Encode()
	}

	for pause := waitFirst; ; pause = min(2*pause, waitMost) {
		if time.Since(began) >= min(compareMost, timeout/2) {
			page = list
		}
		var p keeper.Progress
		if err := verb.FetchPage(c.Ctx, socket, page, &p); err != nil {
			return err
		}
		if p.Enforced {
			return c.Print(p, false, func() error {
				whose := "the API server"
				if namespace != "" {
					whose = "namespace " + namespace + " and of the cluster"
				}
				_, err := fmt.Fprintf(c.Out, "Node %s enforces all %d policies of %s.\n", p.Node,
					p.Policies, whose)
				return err
			})
		}
		left := time.Until(end)
		if left <= 0 && page == list {
			return fmt.Errorf("the policies of the API server are not enforced after %s: %s", timeout,
				strings.Join(p.Missing, "; "))
		}
		select {
		case <-c.Ctx.Done():
			return c.Ctx.Err()
		case <-time.After(min(pause, left)):
		}
	}
}
