// Package testbed makes the namespaces in which the suite measures latencies. They hold three API
// servers in memory, a node with everything that veild installs except tunnels, and a node without
// Kubeveil. The package also defines their addresses.
//
// It changes only namespaces, cgroups and folders that it made, and all of them end with the
// process. Start reading at New.
package testbed
