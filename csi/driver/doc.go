// Package driver is the CSI driver csi.kubeveil.io: the identity, controller and node services of
// the Container Storage Interface (v1), for the volumes of one node.
//
// It promises:
//   - Every call may be repeated, at any time, by another process. The driver reads the state of
//     the volume, the mappings and the mount table, and relies on no memory of earlier calls.
//   - A file system is made only on a volume that was never used, according to its state. An
//     unexpected file system is an error.
//   - Unstage and unpublish never force an unmount: a mount in use stays, and the error names its
//     path.
//   - Errors have the codes of docs/design/0006-csi-driver.md and name a remedy. No secret is in an
//     error or a log.
//
// It changes disks and keys only through csi/volume, and file systems only through csi/mount. It
// refuses unknown parameters.
//
// Each backend has a volume.Set of its own (Config.Sets). So csi/volume needs to know only one
// backend. The driver refuses a state whose backend is not configured before a Set locks or reads
// anything.
//
// A state keeps the parameters of its class as one text (Parameters.String). VeilVolume's spec
// holds that text and is immutable. Separate fields would be a second form of the same parameters.
//
// The package is larger than most, because the services share request checks, locks and codes. Two
// halves would depend on each other.
//
// Start reading at Config, then controller.go and stage.go.
package driver
