// Package source has the Source interface, the snapshot file, and the source that reads such a
// file. veild writes the snapshot after each revision, and boots from it when the API server is
// away. The Kubernetes source is in package kube.
//
// A snapshot names the keys to which this node encrypts, so it is as trustworthy as
// its file system. It is kept and believed only on tmpfs or ramfs, unless the
// operator declares the disk to be trusted. A file is refused (ErrCorrupt) if others
// may write it, if it is larger than MaxSnapshot or if it is not of its schema.
// Fields of other versions are ignored. A refused last good table is moved aside
// (MoveAside), since veild can begin without it; a refused source.file stays.
//
// Start reading at source.go, then snapshot.go.
package source
