/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Changing an address or a port of a packet, and the checksums that cover it by the difference. */
#pragma once

#include "kernel.h"
#include "packet.h"

enum rewrite_end {
	REWRITE_SRC,
	REWRITE_DST,
};

#define IPV4_CHECK 10

/*
 * Changes an address of an IP header. pseudo: the checksum at l4 covers it as part of the pseudo
 * header; else it covers the header itself, which ICMP quotes. The flags are those of
 * bpf_l4_csum_replace.
 */
static __always_inline int rewrite_addr(struct __sk_buff *skb, int family, __u32 network,
	enum rewrite_end end, const struct addr *from, const struct addr *to, __u32 l4, __u64 flags)
{
	__s64 diff;

	if (family == 4) {
		__be32 old = from->word[3], new = to->word[3];

		/* What ICMP quotes is of no difference: the header's own checksum levels it. */
		if (l4 && flags & BPF_F_PSEUDO_HDR &&
			bpf_l4_csum_replace(skb, l4, old, new, flags | sizeof(new)))
			return -1;
		if (bpf_l3_csum_replace(skb, network + IPV4_CHECK, old, new, sizeof(new)))
			return -1;
		return bpf_skb_store_bytes(
			skb, network + (end == REWRITE_SRC ? 12 : 16), &new, sizeof(new), 0);
	}
	diff = bpf_csum_diff(
		(__be32 *)from->word, sizeof(*from), (__be32 *)to->word, sizeof(*to), 0);
	if (l4 && bpf_l4_csum_replace(skb, l4, 0, diff, flags))
		return -1;
	/*
	 * There is no checksum of the header: what the device summed up changes by the address and
	 * by the checksum that covers it, each of which has to be told.
	 */
	return bpf_skb_store_bytes(skb, network + (end == REWRITE_SRC ? 8 : 24), to, sizeof(*to),
		flags & BPF_F_PSEUDO_HDR ? BPF_F_RECOMPUTE_CSUM : 0);
}

/* Changes a port; off is where it is. */
static __always_inline int rewrite_port(
	struct __sk_buff *skb, __u32 off, __be16 from, __be16 to, __u32 l4, __u64 flags)
{
	if (from == to)
		return 0;
	if (l4 && bpf_l4_csum_replace(skb, l4, from, to, flags | sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, off, &to, sizeof(to), 0);
}
