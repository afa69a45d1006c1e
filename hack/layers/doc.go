// Command layers shows the order of the files of packages. A file uses another one if it names
// something that the other declares. The command puts the files of a package in an order in which
// few of these uses lead back up, and prints those that still do:
//
//	go run ./hack/layers ./pkg/guard ./pkg/agent
//
// A package that reads from top to bottom has few of them. Test files do not count.
package main
