// Package result is the audit of a cluster as a value: sections of rows with verdicts, and samples.
// It is written as result.json for programs, and as one HTML page for people.
//
// It promises:
//
//   - The page is self-contained: it needs no script, no font and no request.
//   - Each row begins with its verdict. The page lists what was not examined, and why.
//   - Text from nodes, pods and the API server passes Clean and package redact, is bounded in
//     length, and is escaped by html/template. So a node that was taken over can lie about itself,
//     but can do nothing else to the page.
//   - The folder is written completely or not at all.
//
// Start reading at Result, then Result.Finish, then Write.
package result
