// Package sock wraps the system calls of the engine: UDP sockets with segmentation offloads in both
// directions, and queues of a TUN. No call allocates once the objects exist, and none but Wait
// blocks.
//
// A UDP socket has one address family, is unconnected, and sends with DF and without following
// ICMP's claims about the path (ip(7), IP_PMTUDISC_PROBE). A packet too large for the interface is
// an error; one too large for the path is lost. Sender hands equal datagrams to the kernel as one
// (UDP_SEGMENT, udp(7)); Receiver takes them as one (UDP_GRO). Each datagram leaves with the source
// address to which the peer sent its last one.
//
// If the kernel refuses to segment a datagram, it is sent again piece by piece.
//
// Start reading at Open, Sender.Add and Receiver.Receive.
package sock
