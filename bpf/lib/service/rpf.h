/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A strict reverse path filter (RFC 3704 section 2.2) for packets that come in by a pod's link. The
 * guard's nftables rules drop forged sources too, but behind these programs, which remember flows.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/fib.h"
#include "service/work.h"

/*
 * Reports whether the route to the source of w->in is by the link that the packet came in by. The
 * main table has a route to each address of a pod.
 */
__noinline int rpf_passes(struct __sk_buff *skb)
{
	struct work *w = work_get();
	struct bpf_fib_lookup to;

	if (!w)
		return 0;

	__builtin_memset(&to, 0, sizeof(to));
	to.ifindex = skb->ifindex;
	if (w->in.packet.family == 4) {
		to.family = FAMILY_IPV4;
		to.ipv4_dst = w->in.packet.src.word[3];
	} else {
		to.family = FAMILY_IPV6;
		__builtin_memcpy(to.ipv6_dst, w->in.packet.src.word, sizeof(to.ipv6_dst));
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
