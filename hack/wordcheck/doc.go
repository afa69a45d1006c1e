// Wordcheck holds the house style where a program can: lines of at most 100 columns, the field's
// verbs in doc comments, no private words, and functions whose steps are set apart. Private words
// are looked for in comments, in texts of programs, in documents and in manifests. Lines are
// measured in shell, Makefile and YAML too.
//
// A rule has no findings, or as many as its ceiling for a top-level folder in ceilings.txt. A
// ceiling is only ever lowered. Start reading at check.go.
package main
