/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rewrites an address or a port of a packet, and updates the checksums by the difference. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

enum rewrite_end {
	REWRITE_SRC,
	REWRITE_DST,
};

/* Offset of the checksum in an IPv4 header. */
#define IPV4_CHECK 10

/*
 * Rewrites one address of the IP header at network from one value to another. Returns 0, or -1 if
 * the kernel has no memory for it.
 *
 * l4 is the offset of the checksum that covers the address; 0 means none. flags are the flags of
 * bpf_l4_csum_replace. With BPF_F_PSEUDO_HDR it is the checksum of TCP, UDP or ICMPv6, which
 * covers a pseudo header. Without, it is the checksum of an ICMP error around a rewritten packet.
 */
static __always_inline int rewrite_addr(struct __sk_buff *skb, int family, __u32 network,
	enum rewrite_end end, const struct addr *from, const struct addr *to, __u32 l4, __u64 flags)
{
	__s64 diff;

	if (family == 4) {
		__be32 old = from->word[3], new = to->word[3];

		/* In an inner packet the address and the header's own checksum cancel out. */
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
	 * An IPv6 header has no checksum. The sum that the device computed over the packet changes
	 * twice: by the address and by the checksum that covers it. The kernel must learn of each.
	 */
	return bpf_skb_store_bytes(skb, network + (end == REWRITE_SRC ? 8 : 24), to, sizeof(*to),
		flags & BPF_F_PSEUDO_HDR ? BPF_F_RECOMPUTE_CSUM : 0);
}

/*
 * Rewrites the port at off from one value to another. l4 and flags are as in rewrite_addr.
 * Returns 0, or -1 if the kernel has no memory for it.
 */
static __always_inline int rewrite_port(
	struct __sk_buff *skb, __u32 off, __be16 from, __be16 to, __u32 l4, __u64 flags)
{
	if (from == to)
		return 0;

	if (l4 && bpf_l4_csum_replace(skb, l4, from, to, flags | sizeof(to)))
		return -1;

	return bpf_skb_store_bytes(skb, off, &to, sizeof(to), 0);
}
