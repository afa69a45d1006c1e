// Package backend is where the ciphertext of volumes lives on a node: Files keeps each in a file on a loop device, Disks gives each a
// whole disk or partition.
//
// It promises that a volume is found again by its name, whatever order devices come in, and that Provision never takes what another
// volume has. It refuses names that are not plain (it makes file names of them). It neither reads nor writes what is on a device:
// that, and whether it is empty, is csi/crypt's and csi/volume's to judge.
//
// Start reading at Backend.
package backend
