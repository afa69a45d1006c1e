/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* NAT of ICMP errors about the packets of a flow. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/icmp_inner.h"
#include "packet/l4.h"
#include "packet/packet.h"
#include "packet/rewrite.h"
#include "service/conntrack.h"
#include "service/flow.h"
#include "service/parse.h"
#include "service/work.h"

/*
 * Rewrites the ICMP error w->in and its inner packet, if that is of a flow. network is the offset
 * of the IP header. Returns 1, 0 if it is not of a flow, or -1 if the kernel has no memory for it.
 *
 * An error goes the opposite way to its inner packet. So the entry of the reply direction undoes
 * the NAT of the inner packet: at the inner packet's other end, and at the end of the error that
 * has the same address.
 */
static __always_inline int icmp_nat(
	struct __sk_buff *skb, struct work *w, __u32 network, enum flow_hook hook)
{
	enum rewrite_end outer = hook == FLOW_IN ? REWRITE_DST : REWRITE_SRC;
	enum rewrite_end inner = hook == FLOW_IN ? REWRITE_SRC : REWRITE_DST;
	__u32 at = w->in.packet.payload + ICMP_INNER_OFFSET,
	      check = w->in.packet.payload + ICMP_CHECK;
	const struct addr *was = hook == FLOW_IN ? &w->scratch.inner.src : &w->scratch.inner.dst;
	const struct addr *end = hook == FLOW_IN ? &w->in.packet.dst : &w->in.packet.src;
	struct ports ports;
	__u8 type;
	int parsed;

	if (bpf_skb_load_bytes(skb, w->in.packet.payload, &type, sizeof(type)) ||
		!icmp_has_inner(w->in.packet.family, type))
		return 0;

	if (w->in.packet.family == 6)
		parsed = service_parse_ipv6(skb, at, &w->scratch.inner);
	else
		parsed = parse_ipv4(skb, BASE_DATA, at, &w->scratch.inner);
	if (parsed != PACKET_IP)
		return 0;
	if (w->scratch.inner.protocol != PROTO_TCP && w->scratch.inner.protocol != PROTO_UDP)
		return 0;
	if (bpf_skb_load_bytes(skb, w->scratch.inner.payload, &ports, sizeof(ports)))
		return 0;

	w->in.key.src = w->scratch.inner.dst;
	w->in.key.dst = w->scratch.inner.src;
	w->in.key.sport = ports.dst;
	w->in.key.dport = ports.src;
	w->in.key.protocol = w->scratch.inner.protocol;
	w->in.key.hook = hook;
	if (hook == FLOW_IN ? !flow_read_in(&w->in.key, &w->out.entry, flow_now(), READ_OWN_FIRST)
			    : !flow_read(&w->in.key, &w->out.entry))
		return 0;

	/* A router's error about a packet that got this node's source leaves with this node's. */
	if ((same_addr(end, was) || (hook == FLOW_OUT && w->out.entry.flags & FLOW_SNAT)) &&
		rewrite_addr(skb, w->in.packet.family, network, outer, end, &w->out.entry.addr,
			w->in.packet.family == 6 ? check : 0, BPF_F_PSEUDO_HDR))
		return -1;

	if (rewrite_addr(skb, w->in.packet.family, at, inner, was, &w->out.entry.addr, check, 0))
		return -1;
	if (rewrite_port(skb, w->scratch.inner.payload + (inner == REWRITE_SRC ? 0 : 2),
		    inner == REWRITE_SRC ? ports.src : ports.dst, w->out.entry.port, check, 0))
		return -1;
	return 1;
}
