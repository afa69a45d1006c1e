// Package load makes traffic between two network namespaces with iperf3, counts what arrived and
// what it cost, and searches the highest rate at which little is lost.
//
// It promises to make traffic only in the given namespaces, to end every process that it started,
// and to count only payload that reached the other end. Loss counts all packets that were sent and
// did not arrive, including the last packets of a run, which iperf3's own figure misses. CPU is the
// CPU time of the whole machine, from /proc/stat, because the kernel charges its work to arbitrary
// processes.
//
// Start reading at Server, then TCP and HighestUDP.
package load
