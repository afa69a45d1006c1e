// Package bpfobj has the common parts of packages that pin BPF programs and maps. It makes the
// directory, replaces pins without a moment in which there is none, and compares a loaded program
// with the wanted one.
//
// It promises that a pin exists at every moment of Repin. It refuses to mount a file system and to
// judge the purpose of an object.
//
// Start with Repin and Same in bpfobj.go.
package bpfobj
