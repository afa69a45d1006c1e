// Package etcd runs etcd in a host of a lab, alone and without a disk, backs up and restores its
// data, and copies objects in it past the API server.
//
// Start reading at Server.Start.
package etcd
