// Package cleanup removes what the CSI driver leaves on a node, after its DaemonSet and before the
// definition of VeilVolumes.
//
// It changes nothing while a driver runs, a volume is open, or there is ciphertext that the caller
// did not allow to destroy; the error names the cause and a remedy. It may be repeated, and reports
// each thing once it is removed. It needs no privilege beyond writing to the folders: sysfs shows
// what is open.
//
// It is apart from cmd/veil-csi, which needs a node, keys and an API server: the clean-up must work
// where the driver cannot start.
//
// It destroys no key: keys are in the states of volumes, not on nodes. Start reading at Run.
package cleanup
