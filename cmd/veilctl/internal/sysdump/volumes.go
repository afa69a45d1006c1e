package sysdump

import (
	"bytes"
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/volume"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// volumeObjects holds the objects about encrypted volumes. Each element becomes a file. The pods,
// logs, policies and rights of the driver are among Kubeveil's own objects.
var volumeObjects = []struct {
	file             string
	resource         schema.GroupVersionResource
	namespace, named string
	// of is the path of the field that must name the driver. An empty path selects all objects.
	of []string
}{
	{"definition-veilvolumes", schema.GroupVersionResource{Group: "apiextensions.k8s.io",
		Version: "v1", Resource: "customresourcedefinitions"}, "", "veilvolumes.csi.kubeveil.io",
		nil},
	{"csidriver", schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1",
		Resource: "csidrivers"}, "", volume.Driver, nil},
	{"csinodes", schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1",
		Resource: "csinodes"}, "", "", nil},
	{"storageclasses", schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1",
		Resource: "storageclasses"}, "", "", []string{"provisioner"}},
	{"csistoragecapacities", schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1",
		Resource: "csistoragecapacities"}, remote.SystemNamespace, "", nil},
	{"volumesnapshotclasses", schema.GroupVersionResource{Group: "snapshot.storage.k8s.io",
		Version: "v1", Resource: "volumesnapshotclasses"}, "", "", []string{"driver"}},
}

// volumes adds the VeilVolumes without wrapped keys and without the names of their claims. It adds
// nothing if the cluster has no definition of VeilVolumes.
func (d *dump) volumes(ctx context.Context) {
	const name = "cluster/veilvolumes.yaml"
	list, err := d.cluster.Dynamic.Resource(kubestore.VeilVolumes).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		d.lacks(name, err)
		return
	}
	items := []any{}
	for _, item := range list.Items {
		for _, secret := range []string{"blob", "annotations"} {
			unstructured.RemoveNestedField(item.Object, "status", "key", secret)
		}
		items = append(items, plainObject(item))
	}
	d.object(name, "list "+kubestore.VeilVolumes.GroupResource().String(), items)
	for _, o := range volumeObjects {
		d.volumeObject(ctx, "cluster/"+o.file+".yaml", o.resource, o.namespace, o.named, o.of)
	}
	d.volumeTable(ctx)
}

func (d *dump) volumeObject(ctx context.Context, name string, resource schema.GroupVersionResource,
	namespace, named string, of []string) {
	var options metav1.ListOptions
	if named != "" {
		options.FieldSelector = "metadata.name=" + named
	}
	list, err := d.cluster.Dynamic.Resource(resource).Namespace(namespace).List(ctx, options)
	if err != nil {
		d.lacks(name, err)
		return
	}
	items := []any{}
	for _, item := range list.Items {
		if len(of) > 0 {
			driver, _, _ := unstructured.NestedString(item.Object, of...)
			if driver != volume.Driver {
				continue
			}
		}
		items = append(items, plainObject(item))
	}
	d.object(name, "list "+resource.GroupResource().String(), items)
}

// volumeTable adds the output of veilctl volume list. It leaves out the names of claims and
// snapshots, because they belong to other namespaces.
func (d *dump) volumeTable(ctx context.Context) {
	const name = "cluster/volumes.txt"
	var b bytes.Buffer
	if err := volume.PrintWithoutOwners(ctx, &b, d.cluster); err != nil {
		d.lacks(name, err)
		return
	}
	d.text(name, "veilctl volume list", b.Bytes())
}
