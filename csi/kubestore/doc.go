// Package kubestore keeps the states of volumes in the custom resource VeilVolume (cluster-scoped,
// csi.kubeveil.io/v1alpha1, manifests/csi/crd). It is the only package below csi/ that uses
// Kubernetes clients.
//
// It promises:
//   - A state is replaced only if it is the one that was read: its revision is the object's
//     resourceVersion, which the API server compares. Of two concurrent writers, one gets
//     volume.ErrConflict.
//   - No part of a state is lost silently. The API server refuses a field that the resource's
//     schema lacks; this program refuses an unknown field when it reads it.
//   - "No such volume" is returned only if the API server returns it for that object, not if the
//     resource is not installed.
//
// The object's spec holds the request: the cluster and volume.Request, which no client can change,
// and requests of people (see Asked). The status holds the rest of the state, the wrapped key
// included.
//
// A Cache keeps the API server's last answers about one node's volumes, by one watch. It informs
// and decides nothing (docs/design/0014-volume-watch.md).
//
// A VeilVolume without status was made by a process that died in between, or restored from a backup
// without statuses. It is refused, except that Create completes it: a volume that may have a disk
// with data must not look new.
//
// Start reading at Store.
package kubestore
