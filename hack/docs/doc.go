// Command docs checks the Markdown documents of the tree, for hack/verify-docs.sh.
//
// It checks that the targets of links exist, including anchors, that lines and sentences are short,
// that design notes have their parts and a row in the index, and that the paths, tests, Make
// targets and flags of veilctl that documents name exist. It also checks that each document
// that code names exists. A message has the file, the line and a correction.
//
// Dated results (e2e/results) are records, so the things that they name need not exist any more.
//
// Start reading at check.go; page.go reads Markdown as far as the checks need it.
package main
