/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host routing by eBPF, the fast path: packets go from link to link, past netfilter and policy
 * routing. These are packets for a pod of this node, a pod's replies to an external client, and
 * datagrams between a pod and a tunnel.
 *
 * A connection of an external client meets conntrack in both directions and from its beginning, or
 * not at all: conntrack takes half a connection for an invalid one. A packet that leaves the node
 * still meets the programs of the link that it leaves by, including the guard's. A pod's packet to
 * another node goes to a tunnel, which encrypts or drops it. All other packets take the kernel's
 * slow path.
 */
#pragma once

#include "kernel.h"
#include "guard/nodes.h"
#include "guard/ranges.h"
#include "guard/vips.h"
#include "packet/addr.h"
#include "packet/drop.h"
#include "packet/fib.h"
#include "packet/l4.h"
#include "packet/packet.h"
#include "packet/settings.h"
#include "service/flow.h"
#include "service/host_port.h"
#include "service/link.h"
#include "service/nat.h"
#include "service/opened.h"
#include "service/refuse.h"
#include "service/rpf.h"
#include "service/settings.h"
#include "service/work.h"

/* linux/if_ether.h */
#define ETH_ALEN 6

/* What host routing may do at a link. */
#define ROUTE_LINKS_MAX 16384
/* Send to the pod by the host's end of its veth. */
#define ROUTE_TO_POD 1
/* Send past the host's end: no program or limit there needs the packet. */
#define ROUTE_TO_PEER 2
/* Take from the pod: nothing but these programs there needs the packet. */
#define ROUTE_FROM_POD 4
/* Take from external clients, and send to them: the guard judges what leaves. */
#define ROUTE_TO_CLIENT 8
/* Only watch which host ports are used. */
#define ROUTE_WATCH 16
/* A tunnel: datagrams of pods go there, and come from there. */
#define ROUTE_TUNNEL 32

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, ROUTE_LINKS_MAX);
	__type(key, __u32); /* the ifindex */
	__type(value, __u8);
} service_routes SEC(".maps");

/* Returns what host routing may do at a link: ROUTE_* or 0. */
static __always_inline __u8 route_flags(__u32 ifindex)
{
	__u8 *flags = bpf_map_lookup_elem(&service_routes, &ifindex);

	return flags ? *flags : 0;
}

/*
 * Decrements the TTL or hop limit. network is the offset of the IP header. Returns 0 if none is
 * left.
 */
static __always_inline int ttl_decrement(struct __sk_buff *skb, __u8 family, __u32 network)
{
	__u32 at = network + (family == 6 ? 7 : 8);
	__be16 was, is; /* the field and its neighbour: checksums are of 16-bit words */

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
	return !bpf_l3_csum_replace(skb, network + 10, was, is, sizeof(is)) &&
	       !bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0);
}

/*
 * Reports whether the packet has IPv4 options. The kernel refuses them or fills them in as it
 * forwards (ip_rcv_options, ip_forward_options). network is the offset of the IP header.
 */
static __always_inline int has_ipv4_options(const struct packet *p, __u32 network)
{
	return p->family == 4 && p->payload != network + sizeof(struct ipv4_header);
}

/* Reports whether the address is link-local (RFC 4291 section 2.5.6). Many pods' links share one.
 */
static __always_inline int is_link_local(const struct addr *a)
{
	return (a->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/*
 * Returns FLOW_HOST_ROUTED if both directions of the new flow of w->in.key to w->out.backend can be
 * host routed, else 0. Both are looked up when the flow begins, so that the flow meets conntrack in
 * both directions or not at all.
 */
__noinline int route_both_ways(struct __sk_buff *skb)
{
	struct work *w = work_get();
	struct bpf_fib_lookup to;

	if (!w || !w->in.has_ethernet || skb->vlan_present || in_ranges(&w->in.key.src) ||
		is_node(&w->in.key.src) || has_ipv4_options(&w->in.packet, ETH_HLEN) ||
		!(route_flags(skb->ifindex) & ROUTE_TO_CLIENT))
		return 0;

	if (!fib_found(fib_lookup(skb, &to, w->in.packet.family, skb->ifindex, &w->in.key.src,
		    &w->out.backend.addr)) ||
		!(route_flags(to.ifindex) & ROUTE_FROM_POD))
		return 0;

	if (!fib_found(fib_lookup(skb, &to, w->in.packet.family, to.ifindex, &w->out.backend.addr,
		    &w->in.key.src)) ||
		!(route_flags(to.ifindex) & ROUTE_TO_CLIENT))
		return 0;

	return FLOW_HOST_ROUTED;
}

/* Rewrites the Ethernet addresses for the link of the next hop. Returns 0 or an error. */
static __always_inline int frame_rewrite(struct __sk_buff *skb, const struct bpf_fib_lookup *to)
{
	__u8 at[2 * ETH_ALEN];

	__builtin_memcpy(at, to->dmac, ETH_ALEN);
	__builtin_memcpy(at + ETH_ALEN, to->smac, ETH_ALEN);
	return bpf_skb_store_bytes(skb, 0, at, sizeof(at), 0);
}

/*
 * Rewrites the source of a packet of a flow, as the egress program of its next link would. Either
 * the packet goes past that program, or it loses service_mark so that the program skips it. Returns
 * the verdict.
 */
static __always_inline int route_nat(struct __sk_buff *skb, struct work *w)
{
	skb->mark &= ~service_mark;
	if ((w->out.entry.flags & (FLOW_FORWARD | FLOW_SNAT)) == FLOW_FORWARD)
		return VERDICT_NEXT; /* the packet keeps its source */

	w->in.key.dst = w->out.entry.addr;
	w->in.key.dport = w->out.entry.port;
	w->in.key.hook = FLOW_OUT;
	return nat_source(skb, ETH_HLEN);
}

/* Sends the packet to a pod. flags are the flags of the pod's link. Returns the verdict. */
static __always_inline int route_to_pod(struct __sk_buff *skb, struct work *w,
	const struct bpf_fib_lookup *to, int has_flow, __u8 flags)
{
	if (!ttl_decrement(skb, w->in.packet.family, ETH_HLEN))
		return VERDICT_NEXT;

	if (tcp_opens(w->in.tcp_flags))
		opened_add(w, has_flow ? &w->out.entry.addr : &w->in.key.dst,
			has_flow ? w->out.entry.port : w->in.key.dport, skb->ifindex, to->ifindex);
	if (has_flow && route_nat(skb, w) != VERDICT_NEXT)
		return VERDICT_COUNTED;
	if (frame_rewrite(skb, to))
		return drop(skb, REASON_SERVICE_FRAME, BASE_DATA);

	if (!(flags & ROUTE_TO_PEER)) {
		skb->mark |= pod_mark;
		return bpf_redirect(to->ifindex, 0);
	}
	skb->mark = 0;
	return bpf_redirect_peer(to->ifindex, 0);
}

/*
 * Sends a pod's reply to an external client. Returns the verdict.
 *
 * The egress program of the link rewrites the source in two cases, for which the reply keeps
 * service_mark. A reply to a VIP must pass the guard by that mark. And if the neighbour is not
 * known yet, the kernel resolves it first, with the service's address as the source.
 */
static __always_inline int route_to_client(
	struct __sk_buff *skb, struct work *w, const struct bpf_fib_lookup *to, int neighbour_known)
{
	struct bpf_redir_neigh next = {.nh_family = to->family};

	if (!ttl_decrement(skb, w->in.packet.family, ETH_HLEN))
		return VERDICT_NEXT;

	if (neighbour_known && !is_vip(&w->out.entry.addr) && route_nat(skb, w) != VERDICT_NEXT)
		return VERDICT_COUNTED;

	if (to->family == FAMILY_IPV4)
		next.ipv4_nh = to->ipv4_dst;
	else
		__builtin_memcpy(next.ipv6_nh, to->ipv6_dst, sizeof(next.ipv6_nh));
	skb->mark |= pod_mark;
	return bpf_redirect_neigh(to->ifindex, &next, sizeof(next), 0);
}

/*
 * Reports whether the datagram w->in of a pod and peer, a pod of another node, may bypass
 * netfilter. flags are the flags of the pod's link. Both directions may, or none. The addresses of
 * other nodes are excluded, because what the node itself sends to pods takes the slow path.
 */
static __always_inline int tunnel_takes(const struct work *w, const struct addr *peer, __u8 flags)
{
	return w->in.key.protocol == PROTO_UDP && flags & ROUTE_TO_POD && flags & ROUTE_FROM_POD &&
	       in_ranges(peer) && !is_node(peer) && !dnat_has_packet(w);
}

/*
 * Sends the datagram w->in, which is of no flow, to a tunnel. own are the flags of the pod's link.
 * It takes the route of packets with pod_mark. Returns the verdict.
 */
static __noinline int route_to_tunnel(struct __sk_buff *skb, __u8 own)
{
	struct work *w = work_get();
	struct bpf_fib_lookup to;

	if (!w || skb->gso_size || !tunnel_takes(w, &w->in.key.dst, own))
		return VERDICT_NEXT;

	if (!fib_found(fib_lookup_in(skb, &to, w->in.packet.family, pod_table, skb->len - ETH_HLEN,
		    &w->in.key.src, &w->in.key.dst)) ||
		!(route_flags(to.ifindex) & ROUTE_TUNNEL) ||
		!ttl_decrement(skb, w->in.packet.family, ETH_HLEN))
		return VERDICT_NEXT;

	skb->mark = pod_mark;
	return bpf_redirect(to.ifindex, 0);
}

/*
 * Sends the datagram w->in, which came out of a tunnel and is of no flow, to a pod. Records which
 * host ports pods of other nodes use. Returns the verdict.
 */
__noinline int route_from_tunnel(struct __sk_buff *skb)
{
	struct work *w = work_get();
	struct bpf_fib_lookup to;
	__be16 proto;
	__u8 own;
	long found;

	if (!w || w->in.key.protocol != PROTO_UDP)
		return VERDICT_NEXT;
	own = route_flags(skb->ifindex);
	if (!own)
		return VERDICT_NEXT;

	found = fib_lookup(
		skb, &to, w->in.packet.family, skb->ifindex, &w->in.key.src, &w->in.key.dst);
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED && host_port_used(&w->in.key.dst, w->in.key.dport))
		return service_drop(skb, COUNT_PACKET_PORT, BASE_NETWORK);
	if (found || !(own & ROUTE_TUNNEL) || has_ipv4_options(&w->in.packet, 0) ||
		!tunnel_takes(w, &w->in.key.src, route_flags(to.ifindex)) ||
		!ttl_decrement(skb, w->in.packet.family, 0))
		return VERDICT_NEXT;

	proto = w->in.packet.family == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (bpf_skb_change_head(skb, ETH_HLEN, 0))
		return drop(skb, REASON_SERVICE_FRAME, BASE_NETWORK);
	if (frame_rewrite(skb, &to) ||
		bpf_skb_store_bytes(skb, 2 * ETH_ALEN, &proto, sizeof(proto), 0))
		return drop(skb, REASON_SERVICE_FRAME, BASE_DATA);

	skb->mark = pod_mark;
	return bpf_redirect(to.ifindex, 0);
}

/*
 * Sends the packet w->in to its next link. has_flow means that it belongs to a flow, so that its
 * destination is w->out.entry by now. Returns the verdict; VERDICT_NEXT leaves it to the kernel.
 */
__noinline int route_packet(struct __sk_buff *skb, int link, int has_flow)
{
	struct work *w = work_get();
	struct bpf_fib_lookup to;
	int reply; /* whether it is a pod's reply to an external client: no other leaves the node */
	__u8 flags, own; /* of the next link, of this one */
	long found;

	if (!w || skb->vlan_present)
		return VERDICT_NEXT;
	own = route_flags(skb->ifindex);
	if (link == LINK_POD ? !own
			     : !(own & ROUTE_TO_CLIENT && w->out.entry.flags & FLOW_HOST_ROUTED))
		return VERDICT_NEXT;
	reply = has_flow && link == LINK_POD &&
		(w->out.entry.flags & (FLOW_FORWARD | FLOW_HOST_ROUTED)) == FLOW_HOST_ROUTED;

	/* Netfilter, which drops forged sources, does not see a packet that goes this way. */
	if (is_link_local(&w->in.key.src) || is_link_local(&w->in.key.dst) ||
		(link == LINK_POD && !w->out.rpf_passed && !rpf_passes(skb)))
		return VERDICT_NEXT;

	if (w->in.tcp_flags & (TCP_FIN | TCP_RST))
		opened_delete(w, has_flow ? &w->out.entry.addr : &w->in.key.dst,
			has_flow ? w->out.entry.port : w->in.key.dport);

	found = fib_lookup(skb, &to, w->in.packet.family, skb->ifindex, &w->in.key.src,
		has_flow ? &w->out.entry.addr : &w->in.key.dst);
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED && link == LINK_POD &&
		host_port_used(has_flow ? &w->out.entry.addr : &w->in.key.dst,
			has_flow ? w->out.entry.port : w->in.key.dport))
		return service_drop(skb, COUNT_PACKET_PORT, BASE_DATA);
	if (has_ipv4_options(&w->in.packet, ETH_HLEN))
		return VERDICT_NEXT;

	flags = route_flags(to.ifindex);
	/* The look-up counts the Ethernet header, which a tunnel does not have. */
	if (flags & ROUTE_TUNNEL && !has_flow)
		return route_to_tunnel(skb, own);
	if (!fib_found(found))
		return VERDICT_NEXT;
	if (reply) {
		/* The client's packets are host routed by the same flag of the pod's link. */
		if (!(flags & ROUTE_TO_CLIENT) || !(own & ROUTE_TO_POD))
			return VERDICT_NEXT;
		return route_to_client(skb, w, &to, !found);
	}
	if (found || !(flags & ROUTE_TO_POD) || (link == LINK_POD && !(own & ROUTE_FROM_POD)))
		return VERDICT_NEXT;
	if (!has_flow && dnat_has_packet(w))
		return VERDICT_NEXT;

	return route_to_pod(skb, w, &to, has_flow, flags);
}
