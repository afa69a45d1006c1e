// Package driver is the CSI driver csi.kubeveil.io: the identity, controller and node services of
// the Container Storage Interface (v1), for the volumes of one node.
//
// It promises:
//   - Every call may be repeated, at any time, by a process that knows nothing of the last one:
//     what is there is read from the state of the volume, the mappings and the mount table.
//   - A file system is made only on a volume whose state says that nobody has used it. One that is
//     there and is not the one expected is an error.
//   - Unstage and unpublish never force anything: what is in use stays, and the error says where.
//   - Errors have the codes of docs/design/0006-csi-driver.md, and say what to do. No secret is in
//     them or in a log.
//
// It takes no step of its own on disks or keys: volumes are csi/volume's, file systems csi/mount's.
// It refuses parameters that it does not know.
//
// It is larger than most packages: the services share the checks of requests, locks and codes, and
// two halves would know each other's.
//
// Start reading at Config, then controller.go and stage.go.
package driver
