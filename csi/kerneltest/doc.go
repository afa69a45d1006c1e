// Package kerneltest proves that csi/volume works on a real kernel and beside stock cryptsetup:
// device-mapper, keyrings, loop devices, file systems. It has tests only.
//
// The tests change the machine's mappings and loop devices, so they run only with KUBEVEIL_DM=1, on
// a machine that nothing else uses. Package e2e/kernel (KUBEVEIL_VM=1) starts such a machine and
// runs the tests there. Package powercut checks a disk as it was at each moment of a possible power
// cut.
package kerneltest
