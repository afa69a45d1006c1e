/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The hook in the egress guard at which services do their SNAT, before the guard judges a packet.
 * A tail call does not return. So a program in egress_translate must itself call guard_out of
 * guard/guard.h. With no program there, the guard judges the packet as it is.
 */
#pragma once

#include "kernel.h"
#include "packet/settings.h"

/* Which program translates: one for links with Ethernet headers, one for links without. */
enum translate_link {
	TRANSLATE_ETHERNET,
	TRANSLATE_L3,
	TRANSLATE_LINKS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TRANSLATE_LINKS);
	__type(key, __u32);
	__type(value, __u32);
} egress_translate SEC(".maps");

/* Hands the packet to the service program for this kind of link, unless a tunnel sent it. */
static __always_inline void translate(struct __sk_buff *skb, enum translate_link link)
{
	if (!(skb->mark & tunnel_mark))
		bpf_tail_call(skb, &egress_translate, link);
}
