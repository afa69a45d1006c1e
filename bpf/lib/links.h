/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The links that have the guard's programs themselves: what comes in by another one is a pod's. */
#pragma once

#include "kernel.h"

#define LINKS_MAX 65536

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LINKS_MAX);
	__type(key, __u32); /* the index */
	__type(value, __u8);
} guarded_links SEC(".maps");

/*
 * Reports whether a packet that leaves came in by the link of a pod or by a tunnel. What this
 * node's own processes send came in by none.
 */
static __always_inline int is_from_inside(struct __sk_buff *skb)
{
	__u32 link = skb->ingress_ifindex;

	return link && !bpf_map_lookup_elem(&guarded_links, &link);
}
