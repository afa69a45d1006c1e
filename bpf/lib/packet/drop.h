/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Drops a packet, counts the reason, and keeps a sample. */
#pragma once

#include "kernel.h"
#include "packet/reasons.h"
#include "packet/packet.h"
#include "packet/sample_packet.h"

/* More than there are reasons, so that a new reason does not change the map. */
#define DROPS_MAX SAMPLE_SERVICE

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROPS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} drops SEC(".maps");

/*
 * Counts a drop for the reason and returns the verdict, which the program returns. base says where
 * the packet begins: BASE_DATA at an Ethernet header, BASE_NETWORK at the IP header.
 */
static __always_inline int drop(struct __sk_buff *skb, __u32 reason, enum packet_base base)
{
	__u64 *count = bpf_map_lookup_elem(&drops, &reason);

	/* Each CPU has its own count, and programs at tc do not preempt each other there. */
	if (count)
		(*count)++;

	sample_packet(skb, reason, base);
	return VERDICT_DROP;
}
