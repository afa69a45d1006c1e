// Package backend stores the ciphertext of volumes on a node: Files in a file on a loop device,
// Disks on a whole disk or partition.
//
// It promises that a volume is found by its name, in any order of devices; that Provision never
// takes another volume's backing; and that a disk that hangs delays only its own volume. A copy
// gets its name once it is complete and on stable storage. Names that are not plain are refused,
// because they become file names.
//
// The package reads nothing from a device and writes only copies. csi/crypt and csi/volume judge
// whether a device is empty.
//
// Start reading at Backend.
package backend
