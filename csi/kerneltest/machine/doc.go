// Package machine starts a virtual machine and runs the tests of csi/kerneltest there. It has tests
// only.
package machine
