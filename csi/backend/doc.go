// Package backend stores the ciphertext of volumes on a node: Files in a file on a loop device,
// Disks on a whole disk or partition.
//
// It promises that a volume is found by its name, in any order of devices. Provision never takes
// another volume's backing. A disk that hangs delays only its own volume. A copy gets its name once
// it is complete and on stable storage. Names become file names, so names that CheckName refuses
// are errors.
//
// Except for Wipe, the package does not read or write the content of a device. Copy works on files.
// csi/crypt and csi/volume decide whether a device is empty.
//
// Start reading at Backend.
package backend
