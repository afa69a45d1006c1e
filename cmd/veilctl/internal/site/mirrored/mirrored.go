package mirrored

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
)

// Resources of links between clusters.
var (
	kubeveil    = schema.GroupVersion{Group: veilnode.Group, Version: veilnode.Version}
	siteNodes   = kubeveil.WithResource("sitenodes")
	SiteRecords = kubeveil.WithResource("siterecords")
	SiteLinks   = kubeveil.WithResource("sitelinks")

	multicluster   = schema.GroupVersion{Group: "multicluster.x-k8s.io", Version: "v1beta1"}
	ServiceExports = multicluster.WithResource("serviceexports")
	ServiceImports = multicluster.WithResource("serviceimports")
)

// Objects are the objects that Cluster has of Site.
type Objects struct {
	Cluster *remote.Cluster
	Site    string
}

// found is an object of a site.
type found struct {
	what   string
	delete func(context.Context) error
}

// list returns the SiteNodes, imports and EndpointSlices of the site. A definition that is missing
// means that there are none.
func (m Objects) list(ctx context.Context) (all []found, err error) {
	for _, list := range []func(context.Context) ([]found, error){m.nodes, m.slices, m.imports} {
		some, err := list(ctx)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func (m Objects) nodes(ctx context.Context) (all []found, err error) {
	objects := m.Cluster.Dynamic.Resource(siteNodes)
	list, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range list.Items {
		name := o.GetName()
		if site, _, _ := strings.Cut(name, "."); site == m.Site {
			all = append(all, found{"SiteNode " + name, func(ctx context.Context) error {
				return objects.Delete(ctx, name, metav1.DeleteOptions{})
			}})
		}
	}
	return all, nil
}

func (m Objects) slices(ctx context.Context) (all []found, err error) {
	list, err := m.Cluster.Client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{
		LabelSelector: mcs.LabelSourceCluster + "=" + m.Site + "," +
			discoveryv1.LabelManagedBy + "=" + mirror.ManagedBy})
	if err != nil {
		return nil, err
	}
	for _, o := range list.Items {
		all = append(all, found{"EndpointSlice " + o.Namespace + "/" + o.Name,
			func(ctx context.Context) error {
				return m.Cluster.Client.DiscoveryV1().EndpointSlices(o.Namespace).Delete(ctx, o.Name,
					metav1.DeleteOptions{})
			}})
	}
	return all, nil
}

// imports returns the ServiceImports whose only cluster is the site, and their derived Services.
func (m Objects) imports(ctx context.Context) (all []found, err error) {
	objects := m.Cluster.Dynamic.Resource(ServiceImports)
	list, err := objects.List(ctx, metav1.ListOptions{LabelSelector: mirror.ManagedByLabel + "=" +
		mirror.ManagedBy})
	if err != nil {
		return nil, err
	}
	for _, o := range list.Items {
		if !onlyOf(o, m.Site) {
			continue
		}
		namespace, name := o.GetNamespace(), o.GetName()
		services := m.Cluster.Client.CoreV1().Services(namespace)
		derived := mirror.DerivedName(name)
		all = append(all, found{"ServiceImport " + namespace + "/" + name,
			func(ctx context.Context) error {
				err := services.Delete(ctx, derived, metav1.DeleteOptions{})
				if err != nil && !apierrors.IsNotFound(err) {
					return err
				}
				return objects.Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{})
			}})
	}
	return all, nil
}

// onlyOf reports whether a ServiceImport has the site as its only source.
func onlyOf(o unstructured.Unstructured, site string) bool {
	var first map[string]time.Time
	if json.Unmarshal([]byte(o.GetAnnotations()[mirror.FirstAnnotation]), &first) != nil {
		return false
	}
	_, is := first[site]
	return is && len(first) == 1
}

// Gone waits until nothing of the site is left.
func (m Objects) Gone(ctx context.Context, wait time.Duration) error {
	return remote.Until(ctx, "objects of site "+m.Site, wait, func(ctx context.Context) error {
		left, err := m.list(ctx)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%s and %d others are left", left[0].what, len(left)-1)
		}
		return err
	})
}

// Remove deletes what is left of the site, and its SiteLink, which a veil-site that runs keeps as
// long as the configuration has the site.
func (m Objects) Remove(ctx context.Context, note func(string)) error {
	left, err := m.list(ctx)
	if err != nil {
		return err
	}
	links := m.Cluster.Dynamic.Resource(SiteLinks)
	if _, err := links.Get(ctx, m.Site, metav1.GetOptions{}); err == nil {
		left = append(left, found{"SiteLink " + m.Site, func(ctx context.Context) error {
			return links.Delete(ctx, m.Site, metav1.DeleteOptions{})
		}})
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	var errs []error
	for _, o := range left {
		err := o.delete(ctx)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete %s: %w", o.what, err))
			continue
		}
		note(o.what)
	}
	return errors.Join(errs...)
}
