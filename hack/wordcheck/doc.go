// Wordcheck holds the house style where a program can. Lines have at most 100 columns, doc comments
// use the field's verbs, and steps of functions are set apart. There are no private words and no
// riddles. Words and sentences are checked in comments, in texts of programs, in names of tests, in
// documents and in manifests. Lines are measured in shell, Makefile and YAML too.
//
// A rule has no findings, or as many as its ceiling in ceilings.txt. A ceiling counts a top-level
// folder; one for sentences counts a folder of two path elements, such as pkg/kube. A ceiling is
// only ever lowered, which --lower does. Verbs such as tell and ask have no ceiling: --review lists
// them. Start reading at check.go; sentences.go has the riddles.
package main
