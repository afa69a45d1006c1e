// Package source says where the table comes from: the Source interface, the
// snapshot file that veild writes after each revision and boots from when the
// API server is away, and the source that reads such a file. The Kubernetes
// source is in package kube.
//
// A snapshot names the keys that this node encrypts to, so it is as good as the
// place it lies in: it is kept and believed on tmpfs or ramfs only, unless the
// operator says that the disk is his own. A file is refused (ErrCorrupt) if others
// may write it, if it is larger than MaxSnapshot or if it is not of its schema.
// Fields of other versions are ignored. A refused last good table is moved aside
// (MoveAside), since veild can begin without it; a refused source.file stays.
//
// Start reading at source.go, then snapshot.go.
package source
