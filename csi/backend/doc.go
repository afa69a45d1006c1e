// Package backend is where the ciphertext of volumes lives on a node: Files keeps each in a file on
// a loop device, Disks gives each a whole disk or partition.
//
// It promises that a volume is found again by its name, whatever order devices come in, that
// Provision never takes what another volume has, and that a disk which hangs holds up no volume but
// its own. A copy has its name once it is complete and on stable storage, and not before. It
// refuses names that are not plain (it makes file names of them). It looks at nothing that is on a
// device, and writes there what it copies and nothing else: whether it is empty is csi/crypt's and
// csi/volume's to judge.
//
// Start reading at Backend.
package backend
