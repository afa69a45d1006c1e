package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// AddNamespace creates a namespace and, like a controller, its service account default.
func (c *Control) AddNamespace(ctx context.Context, name string) error {
	return c.objects().AddNamespace(ctx, name)
}

// reserving bounds the wait until veild has reserved the group of a pod. Without a reservation, the
// pod cannot send or receive until veild adds it.
const reserving = 3 * time.Second

// RunPod makes a pod and its object, like the scheduler, the kubelet and the container runtime. It
// calls BindPod, AddPod and WriteStatus. If the node's veild enforces policies, it waits before
// AddPod until veild has reserved the pod's group. AddNamespace must have made the namespace.
func (n *Node) RunPod(ctx context.Context, namespace, name string,
	labels map[string]string) (*Pod, error) {
	o, err := n.BindPod(ctx, namespace, name, labels)
	if err != nil {
		return nil, err
	}
	if v := n.Program("veild"); n.lab.opts.judges() && v != nil && v.Running() {
		_ = n.WaitReserved(ctx, o)
	}
	p, err := n.AddPod(ctx, name, PodOptions{Object: o})
	if err != nil {
		return nil, err
	}
	return p, p.WriteStatus(ctx, o)
}

// BindPod creates the object of a pod that is bound to the node. It is an option of AddPod.
func (n *Node) BindPod(ctx context.Context, namespace, name string,
	labels map[string]string) (*corev1.Pod, error) {
	return n.lab.Control.objects().BindPod(ctx, n.Name, namespace, name, labels)
}

// WaitReserved waits until the node's veild has reserved a group for a pod of the node.
func (n *Node) WaitReserved(ctx context.Context, o *corev1.Pod) error {
	return Until(ctx, reserving, func() error { return n.reserved(o.UID) })
}

// WriteStatus writes the pod's addresses into the status of its object, and updates o to the
// object at the API server.
func (p *Pod) WriteStatus(ctx context.Context, o *corev1.Pod) error {
	return p.Node.lab.Control.objects().SetRunning(ctx, o, p.Addrs)
}

// reserved returns an error unless the node's veild has reserved a group for a pod.
func (n *Node) reserved(uid types.UID) error {
	dir := n.Path(abi.PolicyDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil && bytes.Contains(data, []byte(uid)) {
			return nil
		}
	}
	return fmt.Errorf("no group of %d is pod %s's", len(entries), uid)
}
