/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The guarded links: those that have the guard's programs. */
#pragma once

#include "kernel.h"

#define LINKS_MAX 65536

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LINKS_MAX);
	__type(key, __u32); /* the ifindex */
	__type(value, __u8);
} guarded_links SEC(".maps");

/*
 * Reports whether a packet that leaves came in by a pod's link or by a tunnel. Packets of this
 * node's own processes have no ingress link.
 */
static __always_inline int came_from_inside(struct __sk_buff *skb)
{
	__u32 link = skb->ingress_ifindex;

	return link && !bpf_map_lookup_elem(&guarded_links, &link);
}
