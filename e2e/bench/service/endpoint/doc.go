// Package endpoint is the server behind the services of the benchmark, and the client that counts
// which endpoints answer. Both are verbs of the program that runs the suite.
//
// Start reading at Serve.
package endpoint
