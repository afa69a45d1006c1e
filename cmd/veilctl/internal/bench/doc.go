// Package bench measures a cluster: the network between two nodes, and claims of two
// StorageClasses.
//
// pkg/bench measures; this package reads the flags, shows the progress, and writes the reports. A
// gate that was missed makes the exit status 1.
//
// Start reading at Command.
package bench
