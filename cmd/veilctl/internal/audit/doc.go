// Package audit writes the audit file of a whole cluster: one HTML page for people, and result.json
// with samples for programs.
//
// It promises that the page needs nothing else (no script, no font, no request), that each verdict
// stands first in its row, and that the page lists what was not looked at, and why. What nodes,
// pods and the API server say is text only: it passes clean and package redact, its length is
// bounded, and html/template escapes it. A node may have been taken over: it can lie about itself,
// and nothing more.
//
// The folder is written as a whole, or not at all. An interrupted run writes what it has, and the
// page says that it was interrupted.
//
//	collect ──► sections: rows with a verdict, samples ──► finish ──► page, result.json
//	(API server, exec in veild's pods,                     (pure)
//	 pods that read the uplinks)
//
// Start reading at Command; result.go has what is known at the end, collect.go where it comes from.
package audit
