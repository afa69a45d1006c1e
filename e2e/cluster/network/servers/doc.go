// Package servers has the cases of API servers that are away or lost while nodes and pods use them.
//
// Start reading at ServerLost.
package servers
