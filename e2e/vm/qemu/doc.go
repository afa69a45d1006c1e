// Package qemu has the arguments with which qemu runs a virtual machine of the lab, and finds out
// whether KVM can run it.
//
// Start reading at Guest.
package qemu
