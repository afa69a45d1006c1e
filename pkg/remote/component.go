package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/exec"
)

// SystemNamespace is the namespace of every namespaced object in the manifests
// (docs/design/0002-install.md).
const SystemNamespace = "kube-system"

// Label returns list options that select the pods and DaemonSets of a component: veild or veil-wg.
func Label(component string) metav1.ListOptions {
	const selector = "app.kubernetes.io/name=kubeveil,app.kubernetes.io/component="
	return metav1.ListOptions{LabelSelector: selector + component}
}

// Pods returns the pod of a component on each node, by the name of the node. If a node has several,
// the newest counts.
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

// VeildPods returns the name of veild's pod on each Linux node, by the name of the node. A node
// without such a pod has "".
func (c *Cluster) VeildPods(ctx context.Context) (map[string]string, error) {
	nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the nodes of %s: %w", c.Server, err)
	}
	pods, err := c.Pods(ctx, "veild")
	if err != nil {
		return nil, err
	}

	names := map[string]string{}
	for _, n := range nodes.Items {
		if pod, ok := pods[n.Name]; ok || n.Labels[corev1.LabelOSStable] == "linux" {
			names[n.Name] = pod.Name
		}
	}
	return names, nil
}

// CommandError is the error of a command that ran in a pod and exited with a status other than 0.
type CommandError struct {
	Pod    string
	Status int
	// Stderr is what the command wrote to standard error, cut and Printable.
	Stderr string
}

func (e *CommandError) Error() string {
	text := fmt.Sprintf("exec in %s: command terminated with exit code %d", e.Pod, e.Status)
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

// outputLimit bounds the bytes of each output of a command, because an attacker on the node could
// send any number.
const outputLimit = 32 << 20

// bounded is an io.Writer that keeps up to outputLimit bytes. A longer output is an error.
type bounded struct {
	kept bytes.Buffer
	full bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.full = b.full || b.kept.Len()+len(p) > outputLimit; b.full {
		return 0, errTooLong
	}
	return b.kept.Write(p)
}

// maxError bounds the bytes of an error that a command in a pod wrote.
const maxError = 16 << 10

var errTooLong = fmt.Errorf("the output is longer than %d MiB", outputLimit>>20)

// veilctl is the path of the program in veild's image.
const veilctl = "/usr/local/bin/veilctl"

// ExecVeilctl runs veilctl in a pod of veild and returns its standard output, even with an error.
// The error ends with what veilctl wrote to standard error. If it exited with a status other than
// 0, errors.As finds a *CommandError. ExecVeilctl returns when ctx ends; veilctl may still run.
func (c *Cluster) ExecVeilctl(ctx context.Context, pod string, args ...string) ([]byte, error) {
	return c.output(ctx, nil, pod, args...)
}

// ExecVeilctlWith is like ExecVeilctl, but input is the standard input of veilctl. veilctl must not
// wait for the end of its input.
func (c *Cluster) ExecVeilctlWith(ctx context.Context, input []byte, pod string,
	args ...string) ([]byte, error) {
	return c.output(ctx, bytes.NewReader(input), pod, args...)
}

// ExecVeilctlTo runs veilctl in a pod of veild and copies its standard output, of any length, to
// out as it arrives. The standard input of veilctl is open and empty, and ends when ctx ends.
func (c *Cluster) ExecVeilctlTo(ctx context.Context, out io.Writer, pod string,
	args ...string) error {
	in, end := io.Pipe()
	defer end.Close()
	return c.execTo(ctx, in, out, pod, args...)
}

// output is like ExecVeilctl, but in is the standard input of veilctl. in may be nil.
func (c *Cluster) output(ctx context.Context, in io.Reader, pod string, args ...string) (
	[]byte, error) {
	var out bounded
	err := c.execTo(ctx, in, &out, pod, args...)
	if out.full {
		return nil, fmt.Errorf("exec in %s: %w", pod, errTooLong)
	}
	return out.kept.Bytes(), err
}

// execTo is like output, but copies the standard output to out as it arrives.
func (c *Cluster) execTo(ctx context.Context, in io.Reader, out io.Writer, pod string,
	args ...string) error {
	var stderr bounded
	err := c.stream(ctx, execIn{
		namespace: SystemNamespace, pod: pod, container: "veild",
		command: append([]string{veilctl}, args...), stdin: in, stdout: out, stderr: &stderr,
	})

	var ended exec.CodeExitError
	said := bytes.TrimSpace(stderr.kept.Bytes())
	text := Printable(string(said[:min(len(said), maxError)]))
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ended):
		return &CommandError{Pod: pod, Status: ended.Code, Stderr: text}
	case ctx.Err() != nil:
		return fmt.Errorf("exec in %s: no answer in time", pod)
	case text != "":
		return fmt.Errorf("exec in %s: %w: %s", pod, err, text)
	}
	return fmt.Errorf("exec in %s: %w", pod, err)
}
