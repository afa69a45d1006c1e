// Package sock is the system calls of the engine: UDP sockets with segmentation offloads in both
// directions, and queues of a TUN. No call allocates once the objects exist, and none but Wait
// blocks.
//
// A UDP socket is of one address family, unconnected, and sends with DF and without following
// ICMP's word about the path (ip(7), IP_PMTUDISC_PROBE): a packet too large for the interface is an
// error, one too large for the path is lost. Sender gives equal datagrams to the kernel as one
// (UDP_SEGMENT, udp(7)); Receiver takes them as one (UDP_GRO). Each datagram leaves with the source
// address to which the peer sent its last one.
//
// What the kernel refuses to segment is sent again piece by piece.
//
// Start reading at Open, Sender.Add and Receiver.Receive.
package sock
