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
#include "drop.h"
#include "nodes.h"
#include "own.h"
#include "ranges.h"
#include "settings.h"
#include "state.h"
#include "turn.h"
#include "vips.h"

/* linux/if_ether.h */
#define ETH_ALEN 6

/* What may be done at a link, by its index. */
#define ROUTE_LINKS_MAX 16384
#define ROUTE_POD	1 /* it is a pod's, who may be sent to by the host's end */
#define ROUTE_PEER	2 /* past it: nothing there is to see what the pod gets, no limit */
#define ROUTE_FROM	4 /* a pod's, and nothing there but these programs is to see what it sends */
#define ROUTE_EXIT	8 /* who is outside may be sent to by it: the guard judges what leaves */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, ROUTE_LINKS_MAX);
	__type(key, __u32);
	__type(value, __u8);
} service_routes SEC(".maps");

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
		return !bpf_skb_store_bytes(skb, at - 1, &is, sizeof(is), BPF_F_RECOMPUTE_CSUM);
	}
	if (bpf_ntohs(was) >> 8 <= 1)
		return 0;
	is = bpf_htons(bpf_ntohs(was) - 0x100);
	return !bpf_l3_csum_replace(skb, ETH_HLEN + 10, was, is, sizeof(is)) &&
	       !bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0);
}

/* Asks where a packet goes that came by this link; to has the answer. */
static __always_inline long route_ask(struct __sk_buff *skb, struct bpf_fib_lookup *to, __u8 family,
	__u32 ifindex, const struct addr *src, const struct addr *dst)
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
	return bpf_fib_lookup(skb, to, sizeof(*to), 0);
}

static __always_inline int route_found(long answer)
{
	return answer == BPF_FIB_LKUP_RET_SUCCESS || answer == BPF_FIB_LKUP_RET_NO_NEIGH;
}

/*
 * Reports whether the packet has IPv4 options, which the kernel refuses or fills in as it forwards
 * (ip_rcv_options, ip_forward_options). It begins with an Ethernet header.
 */
static __always_inline int route_has_options(const struct packet *p)
{
	return p->family == 4 && p->payload != ETH_HLEN + sizeof(struct ipv4_header);
}

static __always_inline __u8 route_at(__u32 ifindex)
{
	__u8 *how = bpf_map_lookup_elem(&service_routes, &ifindex);

	return how ? *how : 0;
}

/*
 * Both ways of a flow from outside are looked for when it begins, so that it meets connection
 * tracking either both ways and from its beginning or not at all.
 */
__noinline int route_apart(struct __sk_buff *skb)
{
	struct balance *w = balance_work();
	struct bpf_fib_lookup to;

	if (!host_routing || !w || !w->ethernet || skb->vlan_present || in_ranges(&w->key.src) ||
		is_node(&w->key.src) || route_has_options(&w->p))
		return 0;
	if (!route_found(
		    route_ask(skb, &to, w->p.family, skb->ifindex, &w->key.src, &w->to.addr)) ||
		!(route_at(to.ifindex) & ROUTE_FROM))
		return 0;
	if (!route_found(route_ask(skb, &to, w->p.family, to.ifindex, &w->to.addr, &w->key.src)) ||
		!(route_at(to.ifindex) & ROUTE_EXIT))
		return 0;
	return FLOW_APART;
}

/* Gives the packet the addresses of the link that it goes to. */
static __always_inline int route_frame(struct __sk_buff *skb, const struct bpf_fib_lookup *to)
{
	__u8 at[2 * ETH_ALEN];

	__builtin_memcpy(at, to->dmac, ETH_ALEN);
	__builtin_memcpy(at + ETH_ALEN, to->smac, ETH_ALEN);
	return bpf_skb_store_bytes(skb, 0, at, sizeof(at), 0);
}

/*
 * Does to a packet that is served what the link would that it goes to: it goes past that, or is
 * marked as if it were of no flow.
 */
static __always_inline int route_turn(struct __sk_buff *skb, struct balance *w)
{
	skb->mark &= ~service_mark;
	if ((w->flow.flags & (FLOW_FORWARD | FLOW_SELF)) == FLOW_FORWARD)
		return VERDICT_NEXT; /* it keeps its source */
	w->key.dst = w->flow.addr;
	w->key.dport = w->flow.port;
	w->key.hook = FLOW_OUT;
	return turn_source(skb, ETH_HLEN);
}

/* Sends it to a pod by its link. */
static __always_inline int route_to_pod(struct __sk_buff *skb, struct balance *w,
	const struct bpf_fib_lookup *to, int served, __u8 how)
{
	if (!route_hop(skb, w->p.family))
		return VERDICT_NEXT;
	if (served && route_turn(skb, w) != VERDICT_NEXT)
		return VERDICT_COUNTED;
	if (route_frame(skb, to))
		return drop(REASON_SERVICE_FRAME);
	if (!(how & ROUTE_PEER)) {
		skb->mark |= pod_mark;
		return bpf_redirect(to->ifindex, 0);
	}
	skb->mark = 0;
	return bpf_redirect_peer(to->ifindex, 0);
}

/*
 * Sends what a pod answers to somebody outside. The link that it leaves by translates what goes to
 * an address of services, which needs the mark, and what its neighbour is to be asked for first:
 * the kernel might ask in the name of the service.
 */
static __always_inline int route_out(
	struct __sk_buff *skb, struct balance *w, const struct bpf_fib_lookup *to, int is_known)
{
	struct bpf_redir_neigh next = {.nh_family = to->family};

	if (!route_hop(skb, w->p.family))
		return VERDICT_NEXT;
	if (is_known && !is_vip(&w->flow.addr) && route_turn(skb, w) != VERDICT_NEXT)
		return VERDICT_COUNTED;
	if (to->family == FAMILY_IPV4)
		next.ipv4_nh = to->ipv4_dst;
	else
		__builtin_memcpy(next.ipv6_nh, to->ipv6_dst, sizeof(next.ipv6_nh));
	skb->mark |= pod_mark;
	return bpf_redirect_neigh(to->ifindex, &next, sizeof(next), 0);
}

/* Those of a link alone (RFC 4291 2.5.6), of which many pods' links have one. */
static __always_inline int route_is_local(const struct addr *a)
{
	return (a->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/*
 * Sends the packet of key on: to flow's address by now, if it is served. VERDICT_NEXT is that the
 * kernel is to do it.
 */
__noinline int route_on(struct __sk_buff *skb, int link, int served)
{
	struct balance *w = balance_work();
	struct bpf_fib_lookup to;
	int answer; /* what a pod answers to somebody outside, which alone goes out of the node */
	long found;
	__u8 how;

	if (!host_routing || !w || skb->vlan_present)
		return VERDICT_NEXT;
	if (link == LINK_OUTSIDE && !(w->flow.flags & FLOW_APART))
		return VERDICT_NEXT;
	answer = served && link == LINK_POD &&
		 (w->flow.flags & (FLOW_FORWARD | FLOW_APART)) == FLOW_APART;
	/* Netfilter drops what is not of the pod, and does not see this. */
	if (route_is_local(&w->key.src) || route_is_local(&w->key.dst) ||
		(link == LINK_POD && !w->own && !is_own(skb)))
		return VERDICT_NEXT;
	found = route_ask(skb, &to, w->p.family, skb->ifindex, &w->key.src,
		served ? &w->flow.addr : &w->key.dst);
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED && link == LINK_POD &&
		(w->key.protocol == PROTO_UDP || state_opens(w->tcp_flags)))
		known_add(&service_turned, &w->key.src);
	if (!route_found(found) || route_has_options(&w->p))
		return VERDICT_NEXT;
	how = route_at(to.ifindex);
	if (answer)
		return how & ROUTE_EXIT ? route_out(skb, w, &to, !found) : VERDICT_NEXT;
	if (found || !(how & ROUTE_POD) ||
		(link == LINK_POD && !(route_at(skb->ifindex) & ROUTE_FROM)))
		return VERDICT_NEXT;
	if (!served && (known(&service_turned, &w->key.src) || known(&service_turned, &w->key.dst)))
		return VERDICT_NEXT;
	return route_to_pod(skb, w, &to, served, how);
}
