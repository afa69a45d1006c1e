// Package fastpath gives the pods of a measured node links with the programs of host routing, and
// fills the map of the connections that are open on them.
//
// Start reading at Open.
package fastpath
