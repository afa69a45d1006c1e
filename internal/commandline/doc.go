// Package commandline reads the flags of all programs except veilctl, which has package cobra. It
// holds what each of them does alike: help on standard output, and a complaint that says what to
// write instead.
//
// A flag has two dashes. One dash is for a single letter, such as -h. Start reading at Parse.
package commandline
