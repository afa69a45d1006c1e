// Package nodes has the cases of the life of a node: installation, rollouts of daemons, changes of
// MTUs, power losses, joining and leaving, and uninstallation.
//
// Start reading at Install.
package nodes
