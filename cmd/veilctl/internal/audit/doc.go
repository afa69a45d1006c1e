// Package audit writes the audit file of a whole cluster: one HTML page for people, and result.json
// with samples for programs.
//
// It promises:
//
//   - The page is self-contained: it needs no script, no font and no request.
//
//   - Each row begins with its verdict.
//
//   - The page lists what was not examined, and why.
//
//   - Text from nodes, pods and the API server passes clean and package redact, is bounded in
//     length, and is escaped by html/template. So a node that was taken over can lie about itself,
//     but can do nothing else to the page.
//
//   - The folder is written completely or not at all. An interrupted run writes what it has read,
//     and the page shows that it was interrupted.
//
//     collect ──► sections: rows with a verdict, samples ──► finish ──► page, result.json
//     (API server, exec in veild's pods,                     (pure)
//     pods that read the uplinks)
//
// Start reading at Command. result.go defines the result, and collect.go gathers it.
package audit
