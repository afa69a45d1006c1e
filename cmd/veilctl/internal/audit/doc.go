// Package audit writes the audit file of a whole cluster: one HTML page for people, and result.json
// with samples for programs.
//
// It promises:
//
//   - An interrupted run writes what it has read, and the page shows that it was interrupted.
//
//   - A node that does not answer, or that answers more than is bounded, is listed as not examined.
//
//     collect ──► sections: rows with a verdict, samples ──► finish ──► page, result.json
//     (API server, exec in veild's pods,                     (pure)
//     pods that read the uplinks)
//
// Start reading at Command. Package result defines the result, and collect.go gathers it.
package audit
