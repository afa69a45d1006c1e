// Package client has the clients of API servers that the suite measures. Load sends requests at
// fixed times. Hold and Fleet hold connections and watches while servers fail. Fresh opens a new
// connection for each request.
//
// Each kind runs in its own process. A process of Hold, Fleet or Fresh prints LineHeld once all its
// clients are connected. The suite then sends the mark (SIGUSR1) before a fault. Once all clients
// were served after the mark, the process prints LineServed. At its end it prints a Tally.
//
// Start reading at Load.Run, then Hold.
package client
