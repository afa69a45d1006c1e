// Package suite holds what a benchmark in namespaces of this machine is made in: network
// namespaces, cgroups, a folder, and programs that listen there.
//
// It promises that all of it goes with this process: namespaces are held by descriptors, and
// programs die with it. A cgroup, which is an empty directory, and the folder are left when the
// process is killed, and taken away by the next run of the suite.
//
// Start reading at Space, then Prefix.
package suite
