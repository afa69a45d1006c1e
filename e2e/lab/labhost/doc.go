// Package labhost makes a host out of namespaces of its own (network, mount, PID, UTS, IPC), runs
// programs in it, and keeps their logs in folders of artefacts.
//
// The namespaces are held by a process, the init of the PID namespace. It ends when this process
// ends for any reason, and with it everything in the host: processes, links, mounts. A host has a
// "disk", a directory for its /etc, that survives Halt and Boot. All else does not.
//
// It knows neither Kubernetes nor Kubeveil, and connects hosts to nothing: package lab does. Start
// reading at Host.Make in host.go, then process.go.
package labhost
