// Package bpfobj is what all that pins BPF programs and maps need: the directory,
// pins that are replaced without a moment in which nothing is, and whether a
// program that is loaded already is the one that is wanted.
//
// It promises that a pin is there at every moment of Repin, and refuses to mount
// a file system and to judge what an object is for.
//
// Start with Repin and Same in bpfobj.go.
package bpfobj
