// Package bpfobj has the common parts of packages that pin BPF programs and maps. It makes the
// directory, replaces pins atomically, and compares a loaded program with the wanted one.
//
// A pin that Repin replaces exists at every moment. The package never mounts a file system.
//
// Start with Repin and Same in bpfobj.go.
package bpfobj
