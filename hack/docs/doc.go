// Command docs checks the Markdown documents of the tree, for hack/verify-docs.sh.
//
// It holds that links lead somewhere, anchors included, that lines and sentences
// are short, that design notes have their parts and a row in their index, and that what documents
// name exists: paths of the tree, tests, Make targets, flags of veilctl. Code that names a document
// is checked too. A message says file and line, and what to write instead.
//
// Dated results (e2e/results) are records: what they name may be gone since.
//
// Start reading at check.go; page.go reads Markdown as far as the checks need it.
package main
