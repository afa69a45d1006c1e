// Package endpoint has the server behind the services of the benchmark, and the client that counts
// which endpoints answer. Both run as child processes of the suite.
//
// Start reading at Serve.
package endpoint
