// Package kubestore keeps the states of volumes in the custom resource VeilVolume (cluster-scoped,
// csi.kubeveil.io/v1alpha1, manifests/csi/crd). It is the only package below csi/ that knows
// Kubernetes clients.
//
// It promises:
//   - A state is replaced only when it is the one that was read: its revision is the object's
//     resourceVersion, and the API server compares it. Of two that try, one gets
//     volume.ErrConflict.
//   - Nothing of a state is lost on the way: a field that the resource's schema does not have is
//     refused by the API server, one that this program does not know is refused when it is read.
//   - "No such volume" is said only when the API server says so of that object, not when the
//     resource is not installed.
//
// What was asked for is in the object's spec: the cluster and volume.Request, which nobody can
// change, and requests of people (see Asked). All else of a state is in its status, the wrapped key
// included.
//
// A Cache keeps what the API server last said of one node's volumes, by one watch. It informs and
// decides nothing (docs/design/0014-volume-watch.md).
//
// A VeilVolume without status was made by a process that died in between, or restored from a backup
// that leaves statuses out. It is refused, except that Create completes it: a volume that may have
// a disk with data must not look new.
//
// Start reading at Store.
package kubestore
