package remote

import (
	"bytes"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SystemNamespace is the namespace of all namespaced objects of the manifests
// (docs/design/0002-install.md).
const SystemNamespace = "kube-system"

// Label selects the pods and DaemonSets of a component: veild or veil-wg.
func Label(component string) metav1.ListOptions {
	const selector = "app.kubernetes.io/name=kubeveil,app.kubernetes.io/component="
	return metav1.ListOptions{LabelSelector: selector + component}
}

// Pods returns the pods of a component, by the name of their node: the newest where there are two.
func (c *Cluster) Pods(ctx context.Context, component string) (map[string]corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(SystemNamespace).List(ctx, Label(component))
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", component, err)
	}

	out := map[string]corev1.Pod{}
	for _, p := range list.Items {
		old, ok := out[p.Spec.NodeName]
		if !ok || old.CreationTimestamp.Before(&p.CreationTimestamp) {
			out[p.Spec.NodeName] = p
		}
	}
	return out, nil
}

// Exec runs a command in a container of SystemNamespace and returns its standard output, also
// beside an error, which ends with what the command wrote to standard error. When ctx ends Exec
// returns; the command may go on.
func (c *Cluster) Exec(ctx context.Context, pod, container string, command ...string) (
	[]byte, error) {
	var out, stderr bytes.Buffer
	err := c.stream(ctx, execIn{
		namespace: SystemNamespace, pod: pod, container: container, command: command,
		stdout: &out, stderr: &stderr,
	})

	switch text := bytes.TrimSpace(stderr.Bytes()); {
	case err == nil:
		return out.Bytes(), nil
	case ctx.Err() != nil:
		return out.Bytes(), fmt.Errorf("exec in %s: no answer in time", pod)
	case len(text) > 0:
		return out.Bytes(), fmt.Errorf("exec in %s: %w: %s", pod, err, text)
	}
	return out.Bytes(), fmt.Errorf("exec in %s: %w", pod, err)
}
