package path

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

const (
	// podSuite is the value of remote.SuiteLabel of pods of a check.
	podSuite = "site-path"
	// podLimit is the time after which the kubelet ends a pod of a check that was killed.
	podLimit = 10 * time.Minute
	// veilctl is the path of this program in the image of veild.
	veilctl = "/usr/local/bin/veilctl"
)

// start starts a pod on the host's network of the node, with the image of veild, and removes pods
// of checks that were killed. The pod is in the namespace of veild, which has the Secrets of the
// image and admits pods on the host's network.
func (e *End) start(ctx context.Context) error {
	ds, err := e.Client.AppsV1().DaemonSets(remote.SystemNamespace).Get(ctx, "veild",
		metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("%s: read DaemonSet veild: %w", e.What, err)
	}
	template := ds.Spec.Template.Spec
	i := slices.IndexFunc(template.Containers, func(c corev1.Container) bool {
		return c.Name == "veild"
	})
	if i < 0 {
		return fmt.Errorf("%s: DaemonSet veild has no container veild", e.What)
	}
	if _, err := Remove(ctx, e.Cluster, true); err != nil {
		return fmt.Errorf("%s: %w", e.What, err)
	}

	e.pod = &remote.Pod{Name: "veil-site-path-" + rand.String(5), Node: e.node.Name,
		HostNetwork: true, Image: template.Containers[i].Image,
		Account:      template.ServiceAccountName, // may have the Secrets of the image
		Command:      []string{veilctl, "site", probeVerb, "hold"},
		Capabilities: []corev1.Capability{"NET_RAW"}, Change: func(o *corev1.Pod) {
			o.Labels[remote.SuiteLabel] = podSuite
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet",
				Name: ds.Name, UID: ds.UID}}
			o.Spec.ImagePullSecrets = template.ImagePullSecrets
			o.Spec.Tolerations = template.Tolerations
			o.Spec.ActiveDeadlineSeconds = new(int64(podLimit.Seconds()))
			c := o.Spec.Containers[0].SecurityContext
			c.RunAsUser, c.ReadOnlyRootFilesystem = new(int64(0)), new(true)
		}}
	n := &remote.Namespace{Name: remote.SystemNamespace, Cluster: e.Cluster}
	if err := n.Run(ctx, e.pod); err != nil {
		return fmt.Errorf("%s: %w", e.What, err)
	}
	return nil
}

// Close removes the pods of the check, also after ctx has ended.
func (p *Prober) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeFor)
	defer cancel()
	var errs []error
	for _, e := range p.ends() {
		if e.pod == nil {
			continue
		}
		if err := e.pod.Delete(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: the pod %s/%s of the check is left: %w", e.What,
				remote.SystemNamespace, e.pod.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Remove deletes the pods that checks have left in a cluster: all, or only those that have ended.
// It returns their names.
func Remove(ctx context.Context, k *remote.Cluster, ended bool) (names []string, err error) {
	pods := k.Client.CoreV1().Pods(remote.SystemNamespace)
	list, err := pods.List(ctx, metav1.ListOptions{
		LabelSelector: remote.SuiteLabel + "=" + podSuite})
	if err != nil {
		return nil, fmt.Errorf("list pods of earlier checks: %w", err)
	}
	for _, o := range list.Items {
		if ended && o.Status.Phase != corev1.PodFailed && o.Status.Phase != corev1.PodSucceeded {
			continue
		}
		if err := pods.Delete(ctx, o.Name, metav1.DeleteOptions{}); err == nil {
			names = append(names, o.Name)
		} else if !apierrors.IsNotFound(err) {
			return names, fmt.Errorf("delete pod %s/%s: %w", remote.SystemNamespace, o.Name, err)
		}
	}
	return names, nil
}
