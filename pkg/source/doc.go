// Package source says where the table comes from: the Source interface, the
// snapshot file that veild writes after each revision and boots from when the
// API server is away, and the source that reads such a file. The Kubernetes
// source is in package kube.
//
// A snapshot names the keys that this node encrypts to, so it is as good as the
// place it lies in: it is kept and believed on tmpfs or ramfs only, unless the
// operator says that the disk is his own; one that others may write, that is
// larger than MaxSnapshot or that is not exactly of its schema is refused (ErrCorrupt) and
// left as it is.
//
// Start reading at source.go, then snapshot.go.
package source
