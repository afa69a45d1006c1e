// Package kubestore keeps the states of volumes in the custom resource VeilVolume (cluster-scoped,
// csi.kubeveil.io/v1alpha1, manifests/csi/crd). It is the only package below csi/ that uses
// Kubernetes clients.
//
// It promises:
//   - A state is replaced only if it has not changed since it was read: its revision is the
//     object's resourceVersion, which the API server compares. Of two concurrent writers, one gets
//     volume.ErrConflict.
//   - No part of a state is lost silently. The API server refuses a field that the resource's
//     schema lacks. This package refuses an unknown field when it reads an object.
//   - volume.ErrNotFound is returned only if the API server does not find that object, not if the
//     resource is not installed.
//
// The object's spec holds the cluster and volume.Request, which no client can change, and requests
// of users (see Asked). The status holds the rest of the state, including the wrapped key.
//
// A Cache keeps the objects of one node's volumes with one watch. Its states may be stale, so code
// that changes a volume reads the Store (docs/design/0014-volume-watch.md).
//
// A VeilVolume without status was made by a process that died before it wrote the status, or was
// restored from a backup without statuses. Only Create accepts and completes it. Any other read of
// it is an error, because a volume that may have a disk with data must not look new.
//
// Start reading at Store.
package kubestore
