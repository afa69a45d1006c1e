// Package server has the API servers in memory that the suite measures ways to, and the proxies
// that stand in such ways: one of TCP, and one in the shape of KubeGateway.
//
// A server names itself and the user for which it took the client, so that clients can check each
// answer. Start reading at Serve.
package server
