package site

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/site/mirrored"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/site/path"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

const (
	// program is the name of veil-site's Deployment, of its account, and of its Secret.
	program = "veil-site"
	// readerRole is the ClusterRole of manifests/components/sites for accounts of other clusters.
	readerRole = "kubeveil-site-reader"
)

// side is one of the two clusters of a link.
type side struct {
	path.End
	// uid is the UID of kube-system. Two clusters have different ones.
	uid string
}

const (
	thisCluster  = "this cluster"
	otherCluster = "the other cluster"
)

// open reads what is to be known of both clusters.
func (e *ends) open(ctx context.Context) (here, there *side, err error) {
	if here, err = openSide(ctx, e.here, thisCluster); err != nil {
		return nil, nil, err
	}
	if there, err = openSide(ctx, e.there, otherCluster); err != nil {
		return nil, nil, err
	}
	if here.uid == there.uid {
		return nil, nil, fmt.Errorf("--from names the same cluster as --kubeconfig: both have the "+
			"kube-system namespace %s", here.uid)
	}
	return here, there, nil
}

// openSide reads the configuration and the nodes of a cluster.
func openSide(ctx context.Context, a remote.Access, what string) (*side, error) {
	k, err := a.Open()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	s := &side{End: path.End{Cluster: k, What: what}}
	fail := func(err error) (*side, error) {
		return nil, fmt.Errorf("%s, %s: %w", what, k.Server, err)
	}
	system, err := k.Client.CoreV1().Namespaces().Get(ctx, remote.SystemNamespace,
		metav1.GetOptions{})
	if err != nil {
		return fail(err)
	}
	s.uid = string(system.UID)
	if s.Veild, err = readConfig(ctx, k); err != nil {
		return fail(err)
	}
	if s.Nodes, err = k.Nodes(ctx); err != nil {
		return fail(err)
	}
	return s, nil
}

// readConfig returns the configuration of veild in a cluster.
func readConfig(ctx context.Context, k *remote.Cluster) (config.Config, error) {
	read := func(name, key string) ([]byte, error) {
		m, err := k.Client.CoreV1().ConfigMaps(remote.SystemNamespace).Get(ctx, name,
			metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read ConfigMap %s: %w", name, err)
		}
		return []byte(m.Data[key]), nil
	}
	text, err := read("kubeveil", "veild.yaml")
	if err != nil {
		return config.Config{}, err
	}
	if text == nil {
		return config.Config{}, errors.New("Kubeveil is not installed: there is no ConfigMap " +
			"kube-system/kubeveil")
	}
	kubeadm, err := read("kubeadm-config", "ClusterConfiguration")
	if err != nil {
		return config.Config{}, err
	}
	return config.Parse("veilctl", text, kubeadm)
}

// installed returns an error unless the component sites is installed, with its definitions.
func (s *side) installed(ctx context.Context) error {
	const remedy = "install the component sites and its definitions: docs/how-to/sites.md"
	for _, r := range []schema.GroupVersionResource{mirrored.SiteLinks, mirrored.SiteRecords,
		mirrored.ServiceImports} {
		_, err := s.Dynamic.Resource(r).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("%s has no resource %s.%s; %s", s.What, r.Resource, r.Group, remedy)
		}
		if err != nil {
			return fmt.Errorf("%s: list %s: %w", s.What, r.Resource, err)
		}
	}
	_, err := s.Client.RbacV1().ClusterRoles().Get(ctx, readerRole, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s has no ClusterRole %s; %s", s.What, readerRole, remedy)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.What, err)
	}
	r, err := veilSite(ctx, s.Cluster)
	if err == nil && r.wanted == 0 {
		err = fmt.Errorf("%s has no Deployment kube-system/%s; %s", s.What, program, remedy)
	}
	return err
}

// replicas are the numbers of replicas of veil-site. Zero means that it is not installed.
type replicas struct{ ready, wanted int32 }

// String describes the replicas in a few words.
func (r replicas) String() string {
	if r.wanted == 0 {
		return "not installed"
	}
	return fmt.Sprintf("%d of %d replicas are ready", r.ready, r.wanted)
}

// veilSite returns the replicas of veil-site in a cluster.
func veilSite(ctx context.Context, k *remote.Cluster) (replicas, error) {
	d, err := k.Client.AppsV1().Deployments(remote.SystemNamespace).Get(ctx, program,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return replicas{}, nil
	}
	if err != nil {
		return replicas{}, fmt.Errorf("read Deployment %s: %w", program, err)
	}
	r := replicas{ready: d.Status.ReadyReplicas, wanted: 1}
	if d.Spec.Replicas != nil {
		r.wanted = *d.Spec.Replicas
	}
	return r, nil
}
