// Package servers has the cases of API servers that are away or lost under nodes and pods.
//
// Start reading at ServerLost.
package servers
