/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * ICMP errors carry the beginning of the packet that they are about (RFC 792, RFC 4443). A node
 * makes them for packets that came out of a tunnel too, and one to another node's own address is
 * host to host: it would show in clear what was encrypted.
 */
#pragma once

#include "kernel.h"
#include "packet.h"
#include "ranges.h"
#include "settings.h"

/* The quoted packet follows eight bytes of ICMP. */
#define QUOTE_OFFSET 8

struct ports {
	__be16 src;
	__be16 dst;
};

/* Whether the ICMP type is that of an error or redirect. */
static __always_inline int is_quoting(int family, __u8 type)
{
	if (family == 6)
		return type < 128;
	return (type >= 3 && type <= 5) || type == 11 || type == 12;
}

/*
 * Whether p is an ICMP error about a packet of the cluster or about a probe, or about something
 * that cannot be read.
 */
static __always_inline int quotes_inner(struct __sk_buff *skb, const struct packet *p)
{
	struct packet inner = {};
	struct ports ports;
	__u8 type;
	int parsed;

	if (p->protocol != (p->family == 6 ? PROTO_ICMPV6 : PROTO_ICMP))
		return 0;
	if (packet_load(skb, p->base, p->payload, &type, sizeof(type)))
		return 1;
	if (!is_quoting(p->family, type))
		return 0;
	if (p->family == 6)
		parsed = parse_ipv6(skb, p->base, p->payload + QUOTE_OFFSET, &inner);
	else
		parsed = parse_ipv4(skb, p->base, p->payload + QUOTE_OFFSET, &inner);
	if (parsed != PACKET_IP)
		return 1;
	if (in_ranges(&inner.src) || in_ranges(&inner.dst))
		return 1;
	if (inner.protocol != PROTO_UDP)
		return 0;
	if (packet_load(skb, inner.base, inner.payload, &ports, sizeof(ports)))
		return 1;
	return ports.dst == bpf_htons(probe_port) || ports.src == bpf_htons(probe_port);
}
