// Package testbed makes the namespaces in which the suite measures latencies: three API servers in
// memory, a node with everything that veild installs, and a node without it. It also defines their
// addresses.
//
// It changes only namespaces, cgroups and folders that it made, and all of them end with the
// process. Start reading at New.
package testbed
