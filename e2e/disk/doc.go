// Package disk is a virtual machine with disks that are raw files of this host, and volumes on
// it: what the owner of a disk can see and change is seen and changed here, while the machine runs.
//
// It promises that what volumetool (the program that works with volumes on the machine, built from
// the package of that name) answers is given as it came: an answer with the kind by which a disk
// was refused, or what there is now. A disk's file is changed in place, so that the machine sees it
// at its next read.
//
// It refuses a volumetool that was not built. Start reading at Start, then package answer.
package disk
