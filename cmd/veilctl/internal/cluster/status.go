package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/node"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

var veilNodes = schema.GroupVersionResource{Group: veilnode.Group, Version: veilnode.Version,
	Resource: veilnode.Resource}

// Status returns the verb that shows the status of this node or of a cluster.
func Status() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether Kubeveil works, on this node or in a cluster, and why not",
		Long: `Without --kubeconfig, --context or --cluster, it shows the node that it runs on, by
veild's socket. If there is no such socket, it shows the cluster that kubectl would use.

For a cluster, it runs veilctl in the pod of every veild. This needs the rights to list nodes,
veilnodes and pods, and to exec in pods of kube-system, but no open port. For a node that does not
answer, it shows the facts that the API server has.

KEY is the epoch and the beginning of the public key. PEERS is the number of peers that answer or
were sent nothing, and the number of all peers. POLICIES is the revision of the network policies in
force: a hash of all policies of the cluster, equal on all nodes that enforce the same policies.
BLOCKED is the number of packets that the guard did not let out in clear.`,
		Example: `veilctl status
veilctl status --kubeconfig ~/.kube/config
veilctl status --cluster -o json | jq '.nodes[] | select(.well | not)'`,
	}
	flags := cmd.Flags()
	var access remote.Access
	access.Register(cmd.Flags())
	all := flags.Bool("cluster", false,
		"show all nodes of the cluster, even if veild runs on this node")
	socket := verb.SocketFlag(cmd)
	return verb.Reporting(cmd, func(c verb.Call) error {
		if !*all && !access.Given() && here(cmd, *socket) {
			return node.PrintStatus(c, *socket)
		}
		cluster, err := access.Open()
		if err != nil {
			return fmt.Errorf("no veild on this node (%s), and %w", *socket, err)
		}
		return clusterStatus(c, cluster)
	})
}

// here reports whether the command is about this node: --socket was given, or the socket exists.
func here(cmd *cobra.Command, socket string) bool {
	info, err := os.Stat(socket)
	return cmd.Flags().Changed("socket") || err == nil && info.Mode().Type() == fs.ModeSocket
}

func clusterStatus(c verb.Call, cluster *remote.Cluster) error {
	seen, err := Look(c.Ctx, cluster)
	if err != nil {
		return err
	}
	r := Assess(seen)
	return c.Print(r, !r.Well, func() error { return r.Print(c.Out) })
}

// NodeSeen holds the facts about one node from the API server and, if it answered, from its veild.
type NodeSeen struct {
	Name string
	// created is the time at which the Node was created.
	created time.Time
	// kubelet is the reason why the Node is not Ready; "" if it is Ready.
	kubelet string
	// linux reports whether the manifests' DaemonSets select the node.
	linux bool
	// Arch is the node's architecture as Go names it, such as arm64. The node reports it.
	Arch string
	// claim is the JSON of the spec of its VeilNode; nil if it has no VeilNode.
	claim []byte
	// Pod is the name of veild's pod; "" if there is no pod. PodWhy is the reason why the pod does
	// not run; "" if it runs.
	Pod, PodWhy string
	// status is nil if veild did not answer; err is then the reason.
	status *telemetry.Status
	err    string
	// said holds the last lines of veild's log if its pod does not run.
	said string
}

// Look reads all nodes from the API server, and the status of each node from its veild.
func Look(ctx context.Context, cluster *remote.Cluster) ([]NodeSeen, error) {
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the nodes of %s: %w", cluster.Server, err)
	}
	claims, err := Claims(ctx, cluster)
	if err != nil {
		return nil, err
	}
	pods, err := cluster.Pods(ctx, "veild")
	if err != nil {
		return nil, err
	}

	seen := make([]NodeSeen, len(nodes.Items))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(verb.NodesAtOnce)

	for i, n := range nodes.Items {
		seen[i] = NodeSeen{
			Name: n.Name, created: n.CreationTimestamp.Time, kubelet: NodeProblem(n),
			linux: n.Labels[corev1.LabelOSStable] == "linux", claim: claims[n.Name],
			Arch: n.Status.NodeInfo.Architecture,
		}
		if pod, ok := pods[n.Name]; ok {
			seen[i].Pod, seen[i].PodWhy = pod.Name, PodProblem(pod)
			g.Go(func() error { ask(ctx, cluster, &seen[i]); return nil })
		}
	}

	return seen, g.Wait()
}

// Claims returns the specs of the VeilNodes by name, as JSON. It returns an error if the resource
// is not defined.
func Claims(ctx context.Context, cluster *remote.Cluster) (map[string][]byte, error) {
	list, err := cluster.Dynamic.Resource(veilNodes).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("Kubeveil is not installed in %s: it has no resource "+
			"veilnodes.kubeveil.io; see veilctl check", cluster.Server)
	}
	if err != nil {
		return nil, fmt.Errorf("list veilnodes: %w", err)
	}
	claims := map[string][]byte{}
	for _, o := range list.Items {
		if claims[o.GetName()], err = json.Marshal(o.Object["spec"]); err != nil {
			return nil, fmt.Errorf("VeilNode %s: %w", o.GetName(), err)
		}
	}
	return claims, nil
}

// ask reads the status of a node's veild into n.
func ask(ctx context.Context, cluster *remote.Cluster, n *NodeSeen) {
	ctx, cancel := context.WithTimeout(ctx, verb.NodeLimit)
	defer cancel()
	// If the node is not well, veilctl exits with its own status. Only the printed status counts.
	out, err := cluster.ExecVeilctl(ctx, n.Pod, "status", "-o", "json", "--socket", abi.AdminSocket)
	var s telemetry.Status
	if e := remote.DecodeAnswer(out, &s); e == nil && s.Node != "" {
		n.status = &s
		return
	}
	if err == nil {
		err = fmt.Errorf("exec in %s: its answer is not a status", n.Pod)
	}
	n.err = err.Error()
	if n.PodWhy != "" {
		n.said = lastLines(ctx, cluster, n.Pod)
	}
}

// lastLines returns the end of the log of a veild that does not run. There, veild names what it
// lacks, one line each. It returns "" if the log cannot be read.
func lastLines(ctx context.Context, cluster *remote.Cluster, pod string) string {
	const lines, bytes = 8, 4 << 10
	text, err := cluster.Client.CoreV1().Pods(remote.SystemNamespace).GetLogs(pod,
		&corev1.PodLogOptions{
			Container: "veild", TailLines: new(int64(lines)), LimitBytes: new(int64(bytes)),
		}).DoRaw(ctx)
	if err != nil {
		return ""
	}
	said := strings.Split(strings.TrimSpace(remote.Printable(string(text))), "\n")
	// The lines with which veild ended begin with its name, unlike the lines of the logger.
	if i := slices.IndexFunc(said, func(l string) bool {
		return strings.HasPrefix(l, "veild: ")
	}); i >= 0 {
		said = said[i:]
	}
	return strings.Join(said, "\n")
}

// kubeletWords returns the words of a node's kubelet as a text that is safe to print, on one line.
func kubeletWords(reason, message string) string {
	text := strings.TrimRight(reason+": "+message, ": \n")
	return strings.ReplaceAll(remote.Printable(text), "\n", "; ")
}

// NodeProblem returns why a Node is not Ready, or "" if it is Ready.
func NodeProblem(n corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("its Node is not Ready: %s", kubeletWords(c.Reason, c.Message))
		}
	}
	return ""
}

// PodProblem returns why a pod does not run, or "" if it runs.
func PodProblem(p corev1.Pod) string {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
			return fmt.Sprintf("container %s waits, %s", s.Name, kubeletWords(w.Reason, w.Message))
		}
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("container %s ended with %d", s.Name, t.ExitCode)
		}
	}
	if p.Status.Phase != corev1.PodRunning {
		return fmt.Sprintf("its pod is %s", p.Status.Phase)
	}
	return ""
}
