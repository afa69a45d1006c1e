/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Look-ups in the kernel's routing tables (FIB). */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

/* AF_INET and AF_INET6 (linux/socket.h). */
#define FAMILY_IPV4 2
#define FAMILY_IPV6 10

/* Sets to to what is looked up: a packet from src to dst that came in by ifindex. */
static __always_inline void fib_params(struct bpf_fib_lookup *to, __u8 family, __u32 ifindex,
	const struct addr *src, const struct addr *dst)
{
	__builtin_memset(to, 0, sizeof(*to));
	to->ifindex = ifindex;

	if (family == 4) {
		to->family = FAMILY_IPV4;
		to->ipv4_src = src->word[3];
		to->ipv4_dst = dst->word[3];
	} else {
		to->family = FAMILY_IPV6;
		__builtin_memcpy(to->ipv6_src, src->word, sizeof(to->ipv6_src));
		__builtin_memcpy(to->ipv6_dst, dst->word, sizeof(to->ipv6_dst));
	}
}

/*
 * Looks up the route of a packet from src to dst that came in by ifindex. Sets to to the next hop
 * and returns a BPF_FIB_LKUP_RET_*. family is 4 or 6.
 */
static __always_inline long fib_lookup(struct __sk_buff *skb, struct bpf_fib_lookup *to,
	__u8 family, __u32 ifindex, const struct addr *src, const struct addr *dst)
{
	fib_params(to, family, ifindex, src, dst);
	return bpf_fib_lookup(skb, to, sizeof(*to), 0);
}

/*
 * Does the same in one table, for a packet of size bytes that the route's MTU must have room for.
 * Kernels without BPF_FIB_LOOKUP_TBID (6.5) find nothing.
 */
static __always_inline long fib_lookup_in(struct __sk_buff *skb, struct bpf_fib_lookup *to,
	__u8 family, __u32 table, __u16 size, const struct addr *src, const struct addr *dst)
{
	fib_params(to, family, skb->ifindex, src, dst);
	to->tot_len = size;
	to->tbid = table;
	return bpf_fib_lookup(skb, to, sizeof(*to), BPF_FIB_LOOKUP_DIRECT | BPF_FIB_LOOKUP_TBID);
}

/* Reports whether the look-up found a next hop. Its link address may be unknown. */
static __always_inline int fib_found(long answer)
{
	return answer == BPF_FIB_LKUP_RET_SUCCESS || answer == BPF_FIB_LKUP_RET_NO_NEIGH;
}
