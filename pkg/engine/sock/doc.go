// Package sock wraps the system calls of the engine: UDP sockets with segmentation offloads in both
// directions, and queues of a TUN. Once the objects exist, sending and receiving allocate no
// memory. Only Wait and the netlink requests of Paths block.
//
// A UDP socket has one address family and is unconnected. It sends with DF, and ignores path MTUs
// that ICMP reports (ip(7), IP_PMTUDISC_PROBE). Sending a packet that is too large for the
// interface is an error. A packet that is too large for the path is lost. Sender passes equal
// datagrams to the kernel as one (UDP_SEGMENT, udp(7)), and Receiver receives them as one
// (UDP_GRO). The source address of a datagram is the address to which the peer sent its last
// datagram.
//
// If the kernel refuses to segment a datagram, Sender sends its parts one by one.
//
// Start reading at Open, Sender.Add and Receiver.Receive.
package sock
