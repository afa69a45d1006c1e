/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host routing by eBPF: a packet for a pod of this node, and what a pod answers to a client
 * outside, goes from link to link, past netfilter and the rules of routing. A connection from
 * outside meets connection tracking either both ways and from its beginning or not at all, since
 * that takes half of one for something else. What leaves the node so still meets the programs of
 * the link that it leaves by, the guard's among them, and no pod's packet goes to another node this
 * way. Whatever has no plain way takes that of the kernel.
 */
#pragma once

#include "kernel.h"
#include "balance.h"
#include "own.h"
#include "settings.h"
#include "state.h"

/* linux/if_ether.h */
#define ETH_ALEN 6

/* Links of pods, by index, and what may be done there. */
#define ROUTE_PODS_MAX 16384
#define ROUTE_PEER                                                                                 \
	1 /* nothing at the host's end is to see what the pod gets, no limit for example */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, ROUTE_PODS_MAX);
	__type(key, __u32);
	__type(value, __u8);
} service_pods SEC(".maps");

/* Takes a hop from what the packet has left of them. 0 is that it has none. */
static __always_inline int route_hop(struct __sk_buff *skb, __u8 family)
{
	__u32 at = ETH_HLEN + (family == 6 ? 7 : 8);
	__be16 was, is; /* the field and its neighbour: sums are of words */

	if (bpf_skb_load_bytes(skb, family == 6 ? at - 1 : at, &was, sizeof(was)))
		return 0;
	if (family == 6) {
		if ((bpf_ntohs(was) & 0xff) <= 1)
			return 0;
		is = bpf_htons(bpf_ntohs(was) - 1);
		return !bpf_skb_store_bytes(skb, at - 1, &is, sizeof(is), 0);
	}
	if (bpf_ntohs(was) >> 8 <= 1)
		return 0;
	is = bpf_htons(bpf_ntohs(was) - 0x100);
	return !bpf_l3_csum_replace(skb, ETH_HLEN + 10, was, is, sizeof(is)) &&
	       !bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0);
}

/* Makes to the question where a packet from src to dst goes. */
static __always_inline void route_ask(struct __sk_buff *skb, struct bpf_fib_lookup *to, __u8 family,
	const struct addr *src, const struct addr *dst)
{
	__builtin_memset(to, 0, sizeof(*to));
	to->ifindex = skb->ifindex;
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

/* Gives the packet the addresses of the link that it goes to. */
static __always_inline int route_frame(struct __sk_buff *skb, const struct bpf_fib_lookup *to)
{
	__u8 at[2 * ETH_ALEN];

	__builtin_memcpy(at, to->dmac, ETH_ALEN);
	__builtin_memcpy(at + ETH_ALEN, to->smac, ETH_ALEN);
	return bpf_skb_store_bytes(skb, 0, at, sizeof(at), 0);
}

/* Sends it to a pod by its link. */
static __always_inline int route_to_pod(struct __sk_buff *skb, const struct balance *w,
	const struct bpf_fib_lookup *to, int served, __u8 pod)
{
	if (!route_hop(skb, w->p.family))
		return VERDICT_NEXT;
	if (route_frame(skb, to))
		return VERDICT_DROP;
	/* The program at that link translates what is not for the pod as it is. */
	if (pod & ROUTE_PEER &&
		(!served || (w->flow.flags & (FLOW_FORWARD | FLOW_SELF)) == FLOW_FORWARD))
		return bpf_redirect_peer(to->ifindex, 0);
	return bpf_redirect(to->ifindex, 0);
}

/*
 * Sends the packet of key on: to flow's address by now, if it is of a flow. VERDICT_NEXT is that
 * the kernel is to do it.
 */
__noinline int route_on(struct __sk_buff *skb, int link)
{
	struct balance *w = balance_work();
	int served = (skb->mark & service_mark) != 0;
	struct bpf_fib_lookup to;
	int apart; /* what a pod answers to somebody outside, which alone goes out of the node */
	__u8 *pod;
	long found;

	if (!host_routing || !w || (!served && link != LINK_POD))
		return VERDICT_NEXT;
	if (link == LINK_OUTSIDE && !(w->flow.flags & FLOW_APART))
		return VERDICT_NEXT;
	apart = served && link == LINK_POD &&
		(w->flow.flags & (FLOW_FORWARD | FLOW_APART)) == FLOW_APART;
	/* Netfilter drops what is not of the pod, and does not see this. */
	if (link == LINK_POD && !is_own(skb))
		return VERDICT_NEXT;
	route_ask(skb, &to, w->p.family, &w->key.src, served ? &w->flow.addr : &w->key.dst);
	found = bpf_fib_lookup(skb, &to, sizeof(to), 0);
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED && !served &&
		(w->key.protocol == PROTO_UDP || state_opens(w->tcp_flags)))
		known_add(&service_turned, &w->key.src);
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH)
		return VERDICT_NEXT;
	if (!served && (known(&service_turned, &w->key.src) || known(&service_turned, &w->key.dst)))
		return VERDICT_NEXT;
	pod = bpf_map_lookup_elem(&service_pods, &to.ifindex);
	if (pod)
		return found ? VERDICT_NEXT : route_to_pod(skb, w, &to, served, *pod);
	if (!apart || !route_hop(skb, w->p.family))
		return VERDICT_NEXT;
	skb->mark |= pod_mark;
	if (found)
		return bpf_redirect_neigh(to.ifindex, 0, 0, 0);
	if (route_frame(skb, &to))
		return VERDICT_DROP;
	return bpf_redirect(to.ifindex, 0);
}
