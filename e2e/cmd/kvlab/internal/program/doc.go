// Package program holds what the verbs of kvlab share: a command line that is refused with one
// clear line, an end by signal or by the clock, a folder that holds the results of this run and
// nothing else, and a bound for virtual machines.
//
// It promises that a folder is emptied only if it is empty already or was made
// by Folder before: a mistyped --out costs no file.
//
// Start reading at Command.
package program
