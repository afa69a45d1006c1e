// Package etcd runs a single etcd with its data in memory in a host of a lab. It backs up and
// restores the data, and copies objects without the API server.
//
// Start reading at Server.Start.
package etcd
