package policy

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// listedPods bounds the pods that an error names.
const listedPods = 100

// nodesOfPods returns the nodes of the pods among ends, from the API server. It returns no nodes if
// no end is a pod.
func nodesOfPods(ctx context.Context, k *remote.Cluster, ends []string) ([]string, error) {
	var nodes []string
	for _, end := range ends {
		if !isPodName(end) {
			continue
		}
		namespace, name, _ := strings.Cut(end, "/")
		pod, err := k.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, noPod(ctx, k, namespace, name)
		case err != nil:
			return nil, fmt.Errorf("find the node of pod %s: %w", end, err)
		case pod.Spec.NodeName == "":
			return nil, fmt.Errorf("pod %s is on no node yet", end)
		}
		nodes = append(nodes, pod.Spec.NodeName)
	}
	return nodes, nil
}

// noPod returns the error for a pod that does not exist. It lists pods of the namespace.
func noPod(ctx context.Context, k *remote.Cluster, namespace, name string) error {
	list, err := k.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: listedPods})
	if err != nil {
		return fmt.Errorf("no pod %s in namespace %s; list its pods: %w", name, namespace, err)
	}
	var names []string
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return fmt.Errorf("no pod %s in namespace %s, which has: %s", name, namespace,
		verb.Some(names))
}
