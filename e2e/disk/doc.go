// Package disk runs a virtual machine with volumes on disks that are raw files of this host. So
// tests can read and change the disks while the machine runs, as the owner of a disk can.
//
// volumetool, built from the package of that name, works with the volumes on the machine. It
// promises to return the answers of volumetool unchanged, such as the kind of a refused disk. It
// changes a disk's file in place, so that the machine sees the change at its next read.
//
// Start returns an error if volumetool was not built. Start reading at Start, then package answer.
package disk
