// Package client has the clients of API servers that the suite measures: those that send requests
// at fixed moments (Load), those that hold connections and watches while servers fail (Hold,
// Fleet), and those that open a connection for each request (Fresh).
//
// They run in processes of their own. Those that are held print a line once all are connected, and
// one once all were served after a mark (SIGUSR1), and at their end a Tally.
//
// Start reading at Load.Run, then Hold.
package client
