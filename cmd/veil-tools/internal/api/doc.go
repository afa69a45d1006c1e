// Package api has the verbs about API servers: clients of one, as programs in pods are, and a
// server to which one passes requests on.
//
// Start reading at Verbs.
package api
