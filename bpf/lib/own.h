/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Whether what comes in by a pod's link is the pod's own. */
#pragma once

#include "kernel.h"
#include "balance.h"

/* linux/socket.h */
#define FAMILY_IPV4 2
#define FAMILY_IPV6 10

/*
 * Whether the source of the packet is routed to the link that it came by: main has a route to each
 * address of a pod. What is not so is dropped, but behind these programs, and they remember.
 */
__noinline int is_own(struct __sk_buff *skb)
{
	struct balance *w = balance_work();
	struct bpf_fib_lookup to;

	if (!w)
		return 0;
	__builtin_memset(&to, 0, sizeof(to));
	to.ifindex = skb->ifindex;
	if (w->p.family == 4) {
		to.family = FAMILY_IPV4;
		to.ipv4_dst = w->p.src.word[3];
	} else {
		to.family = FAMILY_IPV6;
		__builtin_memcpy(to.ipv6_dst, w->p.src.word, sizeof(to.ipv6_dst));
	}
	switch (bpf_fib_lookup(skb, &to, sizeof(to), BPF_FIB_LOOKUP_DIRECT)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return to.ifindex == skb->ifindex;
	default:
		return 0;
	}
}
