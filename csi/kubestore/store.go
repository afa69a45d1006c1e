package kubestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/internal/tokenfile"
)

const (
	// patience is how long one request to the API server may take.
	patience = 10 * time.Second
	// page is the maximum number of objects per list request.
	page = 500
)

// Store is a volume.Store in the API server. Its methods may be called from several goroutines.
type Store struct {
	node    string
	client  dynamic.Interface
	volumes dynamic.ResourceInterface
}

var _ volume.Store = (*Store)(nil)

// New returns a Store with the credentials of a kubeconfig file. An empty path means the pod's
// service account. node is the name of this node in Kubernetes. The API server does not let a
// node's token change the volumes of other nodes. New does not connect to the API server.
func New(kubeconfig, node string) (*Store, error) {
	cfg, err := RESTConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("volumes in kubernetes: %w", err)
	}
	return NewForConfig(cfg, node)
}

// NewForConfig returns a Store with the credentials in cfg.
func NewForConfig(cfg *rest.Config, node string) (*Store, error) {
	cfg = rest.CopyConfig(cfg)
	tokenfile.Renew(cfg)
	reflector.ReportAtOnce(cfg)
	cfg.UserAgent = "veil-csi"
	cfg.QPS, cfg.Burst = 50, 100
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("volumes in kubernetes: %w", err)
	}
	return NewForClient(client, node), nil
}

// NewForClient returns a Store with an existing client.
func NewForClient(client dynamic.Interface, node string) *Store {
	return &Store{node: node, client: client, volumes: client.Resource(VeilVolumes)}
}

// RESTConfig reads a kubeconfig file. An empty path means the pod's service account.
func RESTConfig(path string) (*rest.Config, error) {
	if path == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no service account in this pod, and no kubeconfig was "+
				"named: %w", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path},
		&clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return cfg, nil
}

// Cluster returns the id of the cluster, which is the UID of the namespace kube-system.
func (s *Store) Cluster(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	o, err := s.client.Resource(schema.GroupVersionResource{Version: "v1",
		Resource: "namespaces"}).Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", explain("id of the cluster", err)
	}
	if o.GetUID() == "" {
		return "", errors.New("id of the cluster: namespace kube-system has no uid")
	}
	return string(o.GetUID()), nil
}

// Get implements volume.Store.
func (s *Store) Get(ctx context.Context, name string) (volume.State, volume.Revision, error) {
	o, err := s.get(ctx, name)
	if err != nil {
		return volume.State{}, "", err
	}
	st, _, err := parse(o)
	return st, volume.Revision(o.GetResourceVersion()), err
}

func (s *Store) get(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	o, err := s.volumes.Get(ctx, name, metav1.GetOptions{})
	return o, explain("read volume "+name, err)
}

// List implements volume.Store. It leaves out invalid objects, and returns their errors.
func (s *Store) List(ctx context.Context) ([]volume.State, error) {
	var states []volume.State
	var refused []error
	err := s.each(ctx, "", func(o *unstructured.Unstructured) {
		if st, _, err := parse(o); err != nil {
			refused = append(refused, err)
		} else {
			states = append(states, st)
		}
	})
	return states, errors.Join(err, errors.Join(refused...))
}

// each calls do with every VeilVolume that the field selector selects. An empty selector selects
// all.
func (s *Store) each(ctx context.Context, selector string,
	do func(*unstructured.Unstructured)) error {
	next := ""
	for {
		ctx, cancel := context.WithTimeout(ctx, patience)
		list, err := s.volumes.List(ctx, metav1.ListOptions{FieldSelector: selector, Limit: page,
			Continue: next})
		cancel()
		if err != nil {
			return explain("list volumes", err)
		}
		for i := range list.Items {
			do(&list.Items[i])
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// Create implements volume.Store. It completes a VeilVolume that an interrupted Create left without
// status.
func (s *Store) Create(ctx context.Context, st volume.State) error {
	status, err := s.check(st)
	if err != nil {
		return err
	}
	o, err := encode(st.Volume, "", specOf(st), nil)
	if err != nil {
		return err
	}
	made, err := s.create(ctx, o)
	if errors.Is(err, volume.ErrExists) {
		made, st.Request, err = s.unfinished(ctx, st, err)
	}
	if err != nil {
		return err
	}
	_, err = s.putStatus(ctx, st, volume.Revision(made.GetResourceVersion()), status)
	return err
}

func (s *Store) create(ctx context.Context,
	o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	made, err := s.volumes.Create(ctx, o,
		metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	return made, explain("create volume "+o.GetName(), err)
}

// unfinished returns the existing object of the volume and its request, if it has no status and the
// same request. Otherwise it returns the error exists.
func (s *Store) unfinished(ctx context.Context, st volume.State,
	exists error) (*unstructured.Unstructured, volume.Request, error) {
	o, err := s.get(ctx, st.Volume)
	if err != nil {
		return nil, volume.Request{}, err
	}
	_, spec, err := parse(o)
	if !errors.Is(err, errNoStatus) || spec.Cluster != st.Cluster ||
		!same(spec.Request, st.Request) {
		return nil, volume.Request{}, exists
	}
	return o, spec.Request, nil
}

// same reports whether two requests are equal except for Created.
func same(a, b volume.Request) bool {
	a.Created, b.Created = time.Time{}, time.Time{}
	return a == b
}

// Update implements volume.Store. It does not change the request: st.Request must be the Request of
// Create.
func (s *Store) Update(ctx context.Context, st volume.State,
	r volume.Revision) (volume.Revision, error) {
	status, err := s.check(st)
	if err != nil {
		return "", err
	}
	if r == "" {
		return "", fmt.Errorf("volume %s: %w: no revision", st.Volume, volume.ErrConflict)
	}
	return s.putStatus(ctx, st, r, status)
}

// check returns the status of a state, or an error if the state is invalid.
func (s *Store) check(st volume.State) (map[string]any, error) {
	if err := st.Check(); err != nil {
		return nil, err
	}
	if err := checkName(st.Volume); err != nil {
		return nil, err
	}
	return statusOf(st)
}

func (s *Store) putStatus(ctx context.Context, st volume.State, r volume.Revision,
	status map[string]any) (volume.Revision, error) {
	o, err := encode(st.Volume, r, specOf(st), status)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	now, err := s.volumes.UpdateStatus(ctx, o,
		metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		return "", explain("keep state of volume "+st.Volume, err)
	}
	got, _, err := parse(now)
	if err == nil && !same(got.Request, st.Request) {
		err = fmt.Errorf("volume %s: %w: the request was %+v and cannot be changed",
			st.Volume, volume.ErrState, got.Request)
	}
	return volume.Revision(now.GetResourceVersion()), err
}

// Remove implements volume.Store.
func (s *Store) Remove(ctx context.Context, name string, r volume.Revision) error {
	if err := checkName(name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	revision := string(r)
	err := s.volumes.Delete(ctx, name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &revision}})
	return explain("forget volume "+name, err)
}

// checkName returns an error if name cannot be the name of a VeilVolume.
func checkName(name string) error {
	if why := validation.IsDNS1123Subdomain(name); len(why) > 0 {
		return fmt.Errorf("volume %q: %w: as the name of a VeilVolume: %s", name, backend.ErrName,
			strings.Join(why, "; "))
	}
	return nil
}

// explain wraps err, an error of the API server, with the sentinel that callers test for. It
// returns nil for nil. what describes the request.
func explain(what string, err error) error {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil &&
		status.Status().Details.Name != "":
		return fmt.Errorf("%s: %w: %w", what, volume.ErrNotFound, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: the custom resource %s.%s is not installed: apply "+
			"manifests/csi (%w)", what, Resource, Group, err)
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%s: %w: %w", what, volume.ErrExists, err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%s: %w: %w", what, volume.ErrConflict, err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return fmt.Errorf("%s: %w: %w", what, volume.ErrState, err)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: this identity may not: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %w", what, volume.ErrUnavailable, err)
}
