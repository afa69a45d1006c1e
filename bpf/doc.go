// Package bpf holds the compiled BPF programs of the guard and of services, and the list of reasons
// for which a packet is dropped.
//
// It promises that the objects are compiled from the files in progs/ and lib/; a test checks that.
// It does not attach the programs: pkg/guard and pkg/service/bpfmaps load and attach them.
//
// Start with progs/guard_egress.c and lib/guard/guard.h or, for services, with
// progs/service_packet.c and lib/service/tc_path.h. lib/service/flow.h draws the flow table.
package bpf
