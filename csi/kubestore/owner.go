package kubestore

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/csi/volume"
)

// DriverName is the driver's name in Kubernetes.
const DriverName = "csi.kubeveil.io"

// owners are the kinds of objects that own a volume or a snapshot, and the paths of their fields
// with driver and handle.
var owners = []struct {
	resource schema.GroupVersionResource
	kind     string
	driver   []string
	handles  [][]string
}{
	{schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}, "PersistentVolume",
		[]string{"spec", "csi", "driver"}, [][]string{{"spec", "csi", "volumeHandle"}}},
	{schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1",
		Resource: "volumesnapshotcontents"}, "VolumeSnapshotContent", []string{"spec", "driver"},
		[][]string{{"status", "snapshotHandle"}, {"spec", "source", "snapshotHandle"}}},
}

// owner returns the PersistentVolume or VolumeSnapshotContent whose handle is the volume, as
// kind/name, or an empty string. It lists all these objects, so use it only for requests of users.
// It ignores VolumeSnapshotContents if their definition is not installed. For a volume that is not
// a snapshot, it also ignores them if this client may not read them.
func (s *Store) owner(ctx context.Context, name string, snapshot bool) (string, error) {
	for _, of := range owners {
		for next := ""; ; {
			list, err := s.owners(ctx, of.resource, next)
			if of.resource.Group != "" && (apierrors.IsNotFound(err) ||
				!snapshot && apierrors.IsForbidden(err)) {
				break
			}
			if err != nil {
				return "", explain("owner of volume "+name, err)
			}

			for _, o := range list.Items {
				if by, _, _ := unstructured.NestedString(o.Object, of.driver...); by != DriverName {
					continue
				}
				for _, path := range of.handles {
					if h, _, _ := unstructured.NestedString(o.Object, path...); h == name {
						return of.kind + "/" + o.GetName(), nil
					}
				}
			}

			if next = list.GetContinue(); next == "" {
				break
			}
		}
	}
	return "", nil
}

func (s *Store) owners(ctx context.Context, of schema.GroupVersionResource,
	next string) (*unstructured.UnstructuredList, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.client.Resource(of).List(ctx, metav1.ListOptions{Limit: page, Continue: next})
}

// OwnedError means that a volume cannot be destroyed because it has an owner.
type OwnedError struct{ Volume, Owner string }

func (e *OwnedError) Error() string {
	return "volume " + e.Volume + " is not destroyed, because it belongs to " + e.Owner +
		": delete its claim or snapshot; if the reclaim or deletion policy is Retain, set it to " +
		"Delete first"
}

// CheckNoOwner returns an *OwnedError if the volume or snapshot has an owner.
func (s *Store) CheckNoOwner(ctx context.Context, name string) error {
	st, _, err := s.Get(ctx, name)
	if err != nil {
		return err
	}
	owner, err := s.owner(ctx, name, st.Request.Snapshot)
	if err == nil && owner != "" {
		err = &OwnedError{Volume: name, Owner: owner}
	}
	return err
}

// DestroyUnowned executes a request of AskDestroy: it calls destroy, unless the volume has an
// owner. If it has an owner, DestroyUnowned removes the request, which must not destroy the volume
// after a later deletion of the owner, and returns an *OwnedError. After any other error the
// request stays: call DestroyUnowned again.
func (s *Store) DestroyUnowned(ctx context.Context, name string,
	destroy func(context.Context, string) error) error {
	err := s.CheckNoOwner(ctx, name)
	if errors.As(err, new(*OwnedError)) {
		return errors.Join(err, s.WithdrawDestroy(ctx, name))
	}
	if err == nil {
		err = destroy(ctx, name)
	}
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}
