// Package kerneltest proves that csi/volume works on a real kernel and beside stock cryptsetup:
// device-mapper, keyrings, loop devices, file systems. It has tests only.
//
// They change the machine's mappings and loop devices, so they run only with KUBEVEIL_DM=1, on a
// machine that belongs to them. Package e2e/kernel (KUBEVEIL_VM=1) starts such a machine and runs
// them there. Package powercut looks at a disk as it was at each moment at which the power could
// have gone.
package kerneltest
