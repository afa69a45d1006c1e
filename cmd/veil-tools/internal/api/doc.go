// Package api has the verbs about API servers: clients of an API server, as in pods, and a server
// to which an API server sends requests.
//
// Start reading at Verbs.
package api
