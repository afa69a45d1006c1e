/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * ARP and neighbour discovery. The kernel resolves the neighbour of a route on a link, even if the
 * packet is dropped later. The request would reveal a pod's address to the network.
 */
#pragma once

#include "kernel.h"
#include "guard/ranges.h"
#include "packet/addr.h"
#include "packet/packet.h"

/* Offsets of the addresses in an ARP message of IPv4 over Ethernet (RFC 826). */
#define ARP_SENDER 14
#define ARP_TARGET 24

/* ICMPv6 types of neighbour discovery with a target, which follows eight bytes (RFC 4861). */
#define ND_SOLICITATION 135
#define ND_REDIRECT	137
#define ND_TARGET	8

/* Reports whether the ARP message p has an address of a range at off. */
static __always_inline int arp_in_ranges(struct __sk_buff *skb, const struct packet *p, __u32 off)
{
	struct addr a;
	__be32 v4;

	if (packet_load(skb, p->base, p->payload + off, &v4, sizeof(v4)))
		return 0; /* the message ends before it */

	a = addr_from_v4(v4);
	return in_ranges(&a);
}

/* Reports whether the ARP message p names an address of a range as its sender or its target. */
static __always_inline int arp_names_range(struct __sk_buff *skb, const struct packet *p)
{
	return arp_in_ranges(skb, p, ARP_SENDER) || arp_in_ranges(skb, p, ARP_TARGET);
}

/* Reports whether ICMPv6 messages of this type are of neighbour discovery and have a target. */
static __always_inline int nd_has_target(__u8 type)
{
	return type >= ND_SOLICITATION && type <= ND_REDIRECT;
}

/* Reports whether the target of the neighbour discovery message at off is in a range. */
static __always_inline int nd_names_range(struct __sk_buff *skb, enum packet_base base, __u32 off)
{
	struct addr a;

	return !packet_load(skb, base, off + ND_TARGET, &a, sizeof(a)) && in_ranges(&a);
}
