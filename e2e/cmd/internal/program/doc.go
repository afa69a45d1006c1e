// Package program is what the commands of e2e have in common: a command line
// that is refused with one clear line, an end by signal or by the clock, a
// folder of results that holds this run's and nothing else, and a bound for
// virtual machines.
//
// It promises that a folder is emptied only if it is empty already or was made
// by Folder before: a mistyped -out costs no file.
//
// Start reading at Main.
package program
