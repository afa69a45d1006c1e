// Package commandline reads the flags of all programs alike, also of those whose verbs are commands
// of package cobra, and makes their logs alike. Help goes to standard output. An error names the
// correct form.
//
// A flag has two dashes. One dash is for a single letter, such as -h. Start reading at Parse. Main
// is the whole of a program without verbs.
package commandline
