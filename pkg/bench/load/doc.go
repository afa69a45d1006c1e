// Package load makes traffic between two network namespaces with iperf3 and
// counts what arrived and what it cost.
//
// It promises to make traffic in the namespaces it is given and nowhere else, to
// end every process it started, and that a figure is of payload that reached
// the other end. Loss is what was sent and did not arrive, also when it was the last
// packets; iperf3's own figure does not see those. CPU is that of the whole machine,
// from /proc/stat, for work in the kernel is charged to arbitrary processes.
//
// Start reading at Server, then TCP and HighestUDP.
package load
