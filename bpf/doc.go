// Package bpf holds the compiled BPF programs of the guard and of services, and
// the list of reasons for which the guard drops a packet.
//
// It promises objects that were compiled from progs/ and lib/ beside it, which
// a test holds it to, and refuses to know where they are attached: pkg/guard
// loads the guard, and the CNI plugin attaches what is pinned.
//
// Start with progs/guard_egress.c and lib/packet.h, for services with progs/service_socket.c and
// lib/service.h; reasons.go is the one list
// of reasons for C, Go and docs/reference/drop-reasons.md.
package bpf
