// Package labhost makes a host out of namespaces of its own (network, mount, PID, UTS, IPC), runs
// programs in it, and keeps their logs in folders of artefacts.
//
// A holder process, the init of the PID namespace, holds the namespaces. When this process ends for
// any reason, the holder ends, and with it everything in the host: processes, links, mounts. A host
// has a "disk", a directory for its /etc, that survives Halt and Boot. Nothing else survives.
//
// The package does not depend on Kubernetes or Kubeveil, and does not connect hosts: package lab
// does. Start reading at Host.Make in host.go, then process.go.
package labhost
