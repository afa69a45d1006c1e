package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Names of objects in the manifests.
const (
	VeildSet       = "veild"
	WorkerSet      = "veil-wg"
	ConfigMap      = "kubeveil"
	ComponentLabel = "app.kubernetes.io/component"
)

// Claims returns a client for VeilNodes with a token. An empty token means the administrator's
// rights.
func (s *Session) Claims(token string) (dynamic.ResourceInterface, error) {
	config := s.Config
	if token != "" {
		config = rest.AnonymousClientConfig(config)
		config.BearerToken = token
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.Resource(apiobject.VeilNodes), nil
}

// pods returns the pods of one of Kubeveil's DaemonSets that are not being deleted.
func (s *Session) pods(ctx context.Context, set string) ([]corev1.Pod, error) {
	all, err := s.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: ComponentLabel + "=" + set})
	if err != nil {
		return nil, err
	}
	deleted := func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }
	return slices.DeleteFunc(all.Items, deleted), nil
}

// Daemon returns the pod of one of Kubeveil's DaemonSets on a node.
func (s *Session) Daemon(ctx context.Context, set, node string) (*corev1.Pod, error) {
	pods, err := s.pods(ctx, set)
	for i := range pods {
		if pods[i].Spec.NodeName == node {
			return &pods[i], nil
		}
	}
	return nil, cmp.Or(err, fmt.Errorf("no pod of %s on %s", set, node))
}

// Rolling is the time limit of the rollout of a DaemonSet.
const Rolling = 4 * time.Minute

// Replaced compares two results of PodsOf. It returns an error that names the nodes whose pod was
// not replaced.
func Replaced(set string, old, after map[string]string) error {
	var errs []error
	for node, uid := range after {
		if old[node] == uid {
			errs = append(errs, fmt.Errorf("%s of %s was not replaced", set, node))
		}
	}
	return errors.Join(errs...)
}

// PodsOf returns the uid and number of restarts of the DaemonSet's pod on each node, keyed by node.
func (s *Session) PodsOf(ctx context.Context, set string) (map[string]string, error) {
	pods, err := s.pods(ctx, set)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, p := range pods {
		starts := int32(0)
		for _, c := range p.Status.ContainerStatuses {
			starts += c.RestartCount
		}
		out[p.Spec.NodeName] = fmt.Sprintf("%s/%d", p.UID, starts)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("DaemonSet %s has no pods", set)
	}
	return out, nil
}

// Restart replaces every pod of a DaemonSet and waits until the new pods are Ready.
func (s *Session) Restart(ctx context.Context, set string) error {
	if _, err := s.RunKubectl(ctx, "-n", metav1.NamespaceSystem, "rollout", "restart",
		"daemonset/"+set); err != nil {
		return err
	}
	return s.rollout(ctx, set, Rolling)
}

// Installing is the time limit from apply until all nodes are Ready. It is long, because emulated
// machines start containers slowly.
const Installing = 6 * time.Minute

// LinuxNodes returns the names of all nodes that have a kubelet.
func (s *Session) LinuxNodes(ctx context.Context) ([]string, error) {
	nodes, err := s.Nodes(ctx)
	var names []string
	for _, n := range nodes {
		if n.Object.Labels[corev1.LabelOSStable] == "linux" {
			names = append(names, n.Name)
		}
	}
	return names, err
}

// Rollout waits until all pods of a DaemonSet have its newest template and are Ready.
func (s *Session) Rollout(ctx context.Context, set string) error {
	return s.rollout(ctx, set, Installing)
}

func (s *Session) rollout(ctx context.Context, set string, limit time.Duration) error {
	_, err := s.RunKubectl(ctx, "-n", metav1.NamespaceSystem, "rollout", "status", "daemonset/"+set,
		"--timeout="+remote.Patience(ctx, limit).String())
	return err
}

// ApplyDaemons applies a folder of manifests and waits for the rollout of veild.
func (s *Session) ApplyDaemons(ctx context.Context, dir string) error {
	if _, err := s.RunKubectl(ctx, "apply", "-k", dir); err != nil {
		return err
	}
	return s.Rollout(ctx, VeildSet)
}

// NodeStatus returns the output of `veilctl status` on a node.
func (s *Session) NodeStatus(ctx context.Context, node string) (st telemetry.Status, err error) {
	pod, err := s.Daemon(ctx, VeildSet, node)
	if err != nil {
		return st, err
	}
	// veilctl exits with 1 if the node has a problem, so parse its output first.
	out, err := s.ExecVeilctl(ctx, pod.Name, "status", "-o", "json")
	if wrong := json.Unmarshal(out, &st); wrong != nil {
		return st, errors.Join(fmt.Errorf("status of %s: %w", node, wrong), err)
	}
	return st, nil
}
