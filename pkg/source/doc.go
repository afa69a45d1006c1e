// Package source has the Source interface, the snapshot file, and the source that reads such a
// file. veild writes the snapshot after each revision, and boots from it when the API server is
// away. The Kubernetes source is in package kube.
//
// A snapshot contains the public keys to which this node encrypts, so it must be on a trusted file
// system. It is written and read only on tmpfs or ramfs, unless the operator declares the disk to
// be trusted. A file is refused (ErrCorrupt) if others may write it, if it is larger than
// MaxSnapshot or if it has another schema. Fields of other versions are ignored. If the last good
// table is refused, veild moves the file aside (MoveAside) and begins without it. If source.file is
// refused, the file stays.
//
// Start reading at source.go, then snapshot.go.
package source
