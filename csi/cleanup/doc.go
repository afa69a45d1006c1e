// Package cleanup takes what the CSI driver leaves on a node, after its DaemonSet and before the
// definition of VeilVolumes.
//
// It promises to change nothing where a driver still runs, a volume is still open, or ciphertext is
// left that nobody said may go: the error says what, and what to do. It may be repeated, and tells
// each thing once it is gone. It needs no privilege beside writing to the folders: what is open is
// read from sysfs.
//
// It destroys no key: keys are in the states of volumes, and on no node. Start reading at Run.
package cleanup
