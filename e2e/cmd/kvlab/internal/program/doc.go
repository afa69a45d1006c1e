// Package program has the parts that the verbs of kvlab share. It refuses a wrong command line with
// one line. It ends a run at a signal or after a limit. It provides a folder that holds only the
// results of this run, and a bound for the number of virtual machines.
//
// It promises that Folder empties a folder only if Folder made it: a mistyped --out deletes no
// file.
//
// Start reading at Command.
package program
