// Package bench measures a cluster: the network between two nodes, and claims of two
// StorageClasses.
//
// pkg/bench measures. This package reads the flags, shows the progress and writes the reports. The
// exit status is 1 if a gate was missed.
//
// Start reading at Command.
package bench
