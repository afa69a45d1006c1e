// Package source has the Source interface, the snapshot file, and the source that reads such a
// file. veild writes the table into the file after each revision, and boots from it when the API
// server is away. The Kubernetes source is in package kube.
//
// The file begins with a snapshot, which may be written by hand. A Writer appends each change of
// the table behind it, so that one changed node of many costs one small write:
//
//	{"schema":"kubeveil.io/snapshot/v1","table":{...}}     the snapshot, a JSON document
//	{"checksum":"5f0c12aa","change":{"revision":8,...}}    the journal: a line for each change
//	{"checksum":"90b7e341","change":{"revision":9,...}}
//
// The journal is bounded to a quarter of the snapshot. Beyond that, after an error, after a restart
// and if another program changed the file, the Writer replaces the whole file by a rename. A last
// record without an end is dropped, because its writer died before Write returned. There is one
// file, so that no version of veild can read the snapshot without the changes: an older version,
// which does not know journals, refuses the file.
//
// The file contains the public keys to which this node encrypts, so it must be on a trusted file
// system. It is written and read only on tmpfs or ramfs, unless the operator declares the disk to
// be trusted. A file is refused (ErrCorrupt) if others may write it, if it is larger than
// MaxSnapshot, if it has another schema or if a checksum of its journal is wrong. Fields of other
// versions are ignored. If the last good table is refused, veild moves the file aside (MoveAside)
// and begins without it. If source.file is refused, the file stays.
//
// Start reading at source.go, then snapshot.go, journal.go and writer.go.
package source
