/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The headers of TCP (RFC 9293 section 3.1) and UDP (RFC 768). */
#pragma once

#include "kernel.h"

/* What both begin with. */
struct ports {
	__be16 src;
	__be16 dst;
};

struct tcp_header {
	struct ports ports;
	__be32 seq;
	__be32 ack;
	__u8 off;
	__u8 flags;
	__be16 window;
	__be16 check;
	__be16 urgent;
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

struct udp_header {
	struct ports ports;
	__be16 len;
	__be16 check;
};

/* Offsets of the checksum in the header. */
#define TCP_CHECK 16
#define UDP_CHECK 6

/* Reports whether a segment with these flags opens a connection: a SYN and no SYN-ACK. */
static __always_inline int tcp_opens(__u8 tcp_flags)
{
	return (tcp_flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) == TCP_SYN;
}

/* The discard port (RFC 863). Nothing listens there, so the kernel refuses what comes to it. */
#define DISCARD_PORT 9
