// Package nodes has the cases of the life of a node: installation, daemons that are rolled, keys,
// clocks and MTUs that change, machines that lose their power, join and leave, and uninstallation.
//
// Start reading at Install.
package nodes
