// Wordcheck holds the house style where a program can: lines of at most 100 columns, the field's
// verbs in doc comments, no private words, functions whose steps are set apart, and sentences that
// are not riddles. Words and sentences are checked in comments, in texts of programs, in names of
// tests, in documents and in manifests. Lines are measured in shell, Makefile and YAML too.
//
// A rule has no findings, or as many as its ceiling in ceilings.txt. A ceiling counts a top-level
// folder; one for sentences counts a folder of two path elements, such as pkg/kube. A ceiling is
// only ever lowered, which -lower does. Verbs such as tell and ask have no ceiling: -review lists
// them. Start reading at check.go; sentences.go has the riddles.
package main
