// Package kernel runs tests of the network's BPF programs and maps, of pods and policies, and of
// volumes (csi/kerneltest) in a virtual machine, on another kernel than the development machine's.
// It has only tests.
package kernel
