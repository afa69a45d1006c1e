// Wordcheck holds the house style where a program can: lines of at most 100 columns, the field's
// verbs in doc comments, no private words, and functions whose steps are set apart.
//
// A rule has no findings, or as many as its ceiling for a top-level folder in ceilings.txt. A
// ceiling is only ever lowered. Start reading at check.go.
package main
