/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Messages by which hosts of a link find each other. The kernel asks a link for an address that is
 * routed to it, whatever becomes of the packet: the name of a pod would be told to the network.
 */
#pragma once

#include "kernel.h"
#include "addr.h"
#include "packet.h"
#include "ranges.h"

/* ARP of IPv4 over Ethernet (RFC 826): the addresses that it names, from its beginning. */
#define ARP_SENDER 14
#define ARP_TARGET 24

/* ICMPv6 of neighbour discovery (RFC 4861): types with a target behind eight bytes. */
#define ND_SOLICITATION 135
#define ND_REDIRECT	137
#define ND_TARGET	8

static __always_inline int arp_in_ranges(struct __sk_buff *skb, const struct packet *p, __u32 off)
{
	struct addr a;
	__be32 v4;

	if (packet_load(skb, p->base, p->payload + off, &v4, sizeof(v4)))
		return 0; /* it ends before */
	a = addr_from_v4(v4);
	return in_ranges(&a);
}

/* Reports whether the ARP message that begins at payload names an address of a range. */
static __always_inline int names_inside(struct __sk_buff *skb, const struct packet *p)
{
	return arp_in_ranges(skb, p, ARP_SENDER) || arp_in_ranges(skb, p, ARP_TARGET);
}

static __always_inline int is_discovery(__u8 type)
{
	return type >= ND_SOLICITATION && type <= ND_REDIRECT;
}

/* Reports whether the target of the message of neighbour discovery at off is of a range. */
static __always_inline int discovers_inside(struct __sk_buff *skb, enum packet_base base, __u32 off)
{
	struct addr a;

	return !packet_load(skb, base, off + ND_TARGET, &a, sizeof(a)) && in_ranges(&a);
}
