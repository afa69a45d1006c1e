// Package cleanup removes the files that the CSI driver leaves on a node. It runs after the
// driver's DaemonSet was deleted and before the CustomResourceDefinition of VeilVolume is.
//
// It changes nothing while a driver runs, a volume is open, or ciphertext is left that the caller
// did not allow to destroy. The error names the cause and a remedy. It may be repeated. It needs no
// privilege beyond writing to the folders, because it finds open volumes in sysfs.
//
// It does not depend on the driver, which needs a node, keys and an API server. So the clean-up
// works where the driver cannot start.
//
// It does not destroy keys, which are in the states of volumes and not on nodes. Start reading at
// Run.
package cleanup
