// Package load makes traffic between two network namespaces with iperf3 and
// counts what arrived and what it cost.
//
// It promises to make traffic in the given namespaces and nowhere else, to end every process that
// it started, and to count only payload that reached the other end. Loss counts what was sent and
// did not arrive, also when it was the last packets; iperf3's own figure misses those. CPU is the
// CPU time of the whole machine, from /proc/stat, because the kernel charges its work to arbitrary
// processes.
//
// Start reading at Server, then TCP and HighestUDP.
package load
