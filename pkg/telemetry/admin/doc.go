// Package admin serves the admin socket of veild, by which veilctl reads the status and other
// pages, and is its client.
//
// Only root can use the socket. An answer is JSON. Requests, bodies, answers and times have limits.
// The paths of pages stand beside the types of their answers, mostly in package telemetry.
//
// Start reading at Handler, then FetchPage.
package admin
