// Command layers shows the order of the files of packages. A file uses another one if it names
// something that the other declares. The command sorts the files of a package so that most uses
// lead from a file to a later file. It prints the uses that lead to an earlier file:
//
//	go run ./hack/layers ./pkg/guard ./pkg/agent
//
// A package that can be read from top to bottom has few such uses. Test files do not count.
package main
