// Package traffic sends traffic between the hosts and pods of a lab with veil-tools: messages to
// echo servers, connections that stay open, one-way datagrams, and requests to servers that answer
// with their names. Each program ends with a report of what arrived.
//
// It depends only on the interface Place, which runs programs. Start reading at Send and
// TakeCensus.
package traffic
