// Package buildtree finds the root of the repository and builds the programs that a lab runs. They
// are in out/bin and out/tools.
//
// Start reading at Build.
package buildtree
