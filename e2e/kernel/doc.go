// Package kernel runs tests of the network's BPF programs and maps, of pods and policies, and of
// volumes (csi/kerneltest), on the kernel of a virtual machine, which is another than the one that
// they are developed on. It has tests only.
package kernel
