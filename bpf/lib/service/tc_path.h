/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The path of a packet through the programs at tc: DNAT of a packet that comes in, SNAT of one that
 * goes out. A mark records that a packet belongs to a flow. A packet goes only where routes lead
 * (route.h), and packets without a service are left as they are. flow.h has the flow table.
 */
#pragma once

#include "kernel.h"
#include "guard/nodes.h"
#include "guard/ranges.h"
#include "guard/vips.h"
#include "packet/drop.h"
#include "packet/l4.h"
#include "packet/packet.h"
#include "packet/settings.h"
#include "service/balance.h"
#include "service/bloom.h"
#include "service/conntrack.h"
#include "service/count.h"
#include "service/flow.h"
#include "service/flow_end.h"
#include "service/flow_make.h"
#include "service/fragment.h"
#include "service/icmp_nat.h"
#include "service/link.h"
#include "service/nat.h"
#include "service/parse.h"
#include "service/pod_clients.h"
#include "service/quota.h"
#include "service/refuse.h"
#include "service/route.h"
#include "service/rpf.h"
#include "service/settings.h"
#include "service/work.h"

/* linux/if_packet.h: the frame is for this host, by its address on the link. */
#define PACKET_HOST 0

/* Reports whether one end of the packet w->in may have had a flow. */
static __always_inline int may_have_flow(const struct work *w)
{
	return bloom_has_flow(&w->in.key.src) || bloom_has_flow(&w->in.key.dst);
}

/*
 * Makes a flow for the packet w->in, which has no flow. Without a service, deletes the old service
 * flow between the same endpoints. Returns what balance_new returns.
 */
static __always_inline int tc_new(struct __sk_buff *skb, struct work *w, __u32 now, int link)
{
	int why = balance_new(skb, now, link);

	if (why == BALANCE_NO_SERVICE && may_have_flow(w)) {
		if (w->in.key.protocol == PROTO_TCP)
			tcp_flow_forget(now);
		else if (link != LINK_UNDERLAY)
			udp_flow_forget();
	}

	if (why == BALANCE_DONE && link != LINK_UNDERLAY &&
		!(pod_client_remember(skb->ifindex) && quota_take(now))) {
		w->scratch.forward_key = w->in.key;
		flow_end();
		return COUNT_PACKET_PORT;
	}

	return why;
}

/*
 * Refreshes the flow of the backend's reply w->in, whose reply entry is f, with a copy in
 * w->out.entry. Returns BALANCE_DONE, or BALANCE_NO_SERVICE if the reply is of no flow or its
 * source is forged.
 */
static __always_inline int tc_reply(
	struct __sk_buff *skb, struct work *w, struct flow *f, __u32 now, int link)
{
	/* link is the ifindex that rpf_passes checked; an index is never reused, so later packets
	 * need no new look-up. */
	int same_link = link != LINK_POD || f->link == skb->ifindex;
	__u32 flags = packet_flags(w, 0);

	w->out.rpf_passed = same_link;
	if (f->used == now && !(flags & ~f->flags) && same_link && !accepts_other(w, f))
		return BALANCE_DONE;

	w->out.rpf_passed = link != LINK_POD || rpf_passes(skb);
	if (!w->out.rpf_passed)
		return BALANCE_NO_SERVICE;
	if (accepts_other(w, f)) {
		flow_end_of_backend(w);
		return BALANCE_NO_SERVICE;
	}

	if (f->flags & FLOW_SHARED)
		w->in.key.hook = FLOW_OUT; /* the key of a shared entry */
	flow_add_flags(&w->in.key, f, flags);
	w->in.key.hook = FLOW_IN;
	f->used = now;
	if (!same_link)
		f->link = skb->ifindex;
	return BALANCE_DONE;
}

/* Reports whether the client's packet w->in leaves its flow, whose forward entry is f, unchanged.
 */
static __always_inline int tc_is_unchanged(const struct work *w, const struct flow *f, __u32 now)
{
	return f->flags & FLOW_FORWARD && f->used == now && !(packet_flags(w, 1) & ~f->flags) &&
	       !flow_may_open(w, f->flags) && !tcp_opens(w->in.tcp_flags);
}

/*
 * Establishes the connection of the client's segment w->in, if the backend has replied: copies its
 * entries to the table of such flows. w->out.entry is a copy of its forward entry, and
 * w->out.backend its backend. An entry that was evicted is made again by tc_refresh. Returns 0 if
 * it did not.
 */
__noinline int tc_open(__u32 now)
{
	struct work *w = work_get();

	if (!w)
		return 0;

	entry_key_from_backend(w, FLOW_OUT);
	if (!flow_open(&w->scratch.entry_key, &w->scratch.found, FLOW_REPLIED, now))
		return 0;

	if (w->out.entry.flags & FLOW_SNAT) {
		entry_key_to_backend(w, FLOW_OUT);
		if (!flow_open(&w->scratch.entry_key, &w->scratch.found, FLOW_SNAT, now))
			return 0;
		entry_key_from_backend(w, FLOW_IN);
		w->scratch.entry_key.dst = w->scratch.found.addr;
		w->scratch.entry_key.dport = w->scratch.found.port;
		flow_open(&w->scratch.entry_key, &w->scratch.found, 0, now);
	}

	return flow_open(&w->in.key, &w->scratch.found, FLOW_FORWARD, now);
}

/*
 * Refreshes all that belongs to the flow of w->in.key, once a second. f is its forward entry.
 * Returns BALANCE_DONE or the counter of a drop.
 */
static __always_inline int tc_refresh(
	struct __sk_buff *skb, struct work *w, struct flow *f, __u32 now, int link)
{
	__u32 flags = w->out.entry.flags;
	int why;

	f->used = now;
	w->out.flags =
		(flags & FLOW_HOST_ROUTED) | (flags & FLOW_CLIENT_SENT ? FLOW_ESTABLISHED : 0);

	why = entries_store(now, STORE_REFRESH, flags & FLOW_SNAT);
	if (!why && link != LINK_UNDERLAY && !pod_client_remember(skb->ifindex))
		why = COUNT_PACKET_PORT;
	if (why) {
		flow_delete(&w->in.key);
		return why;
	}

	if (link != LINK_UNDERLAY)
		quota_take(now);

	/* Storing the other entries changed w->out.entry. */
	entry_set(w, &w->out.backend.addr, w->out.backend.port, flags, now);
	return BALANCE_DONE;
}

/*
 * Returns the order in which the entries of the packet w->in are looked up. A pod sends more
 * replies than requests to services, since sockets translate most requests. A SYN is not a reply.
 */
static __always_inline int tc_order(const struct work *w, int link)
{
	if (link == LINK_POD)
		return READ_SHARED_FIRST;
	return w->in.key.protocol == PROTO_TCP && tcp_opens(w->in.tcp_flags) ? READ_OWN_ALONE
									     : READ_OWN_FIRST;
}

/*
 * Finds or makes the entry of the packet w->in, which comes in. Sets w->out.entry to a copy.
 * Returns BALANCE_DONE, BALANCE_NO_SERVICE or the counter of a drop.
 */
__noinline int tc_find(struct __sk_buff *skb, int link)
{
	struct work *w = work_get();
	__u32 now = flow_now();
	struct flow *f, *copy;
	__u32 flags;

	if (!w)
		return BALANCE_NO_SERVICE;

	copy = &w->out.entry;
	w->out.rpf_passed = 0;
	f = may_have_flow(w) ? flow_read_in(&w->in.key, copy, now, tc_order(w, link)) : 0;
	if (f && !(copy->flags & FLOW_FORWARD) &&
		!(w->in.key.protocol == PROTO_UDP && flow_expired(PROTO_UDP, copy, now)))
		return tc_reply(skb, w, f, now, link);
	if (!f && w->in.key.protocol == PROTO_TCP && !tcp_opens(w->in.tcp_flags))
		return BALANCE_NO_SERVICE;

	/* A packet with a forged source makes, changes and ends no flow. */
	if (link == LINK_POD && !in_ranges(&w->in.key.src))
		return BALANCE_NO_SERVICE;
	if (link == LINK_POD && !(f && tc_is_unchanged(w, copy, now))) {
		w->out.rpf_passed = rpf_passes(skb);
		if (!w->out.rpf_passed)
			return BALANCE_NO_SERVICE;
	}

	if (f && (!(copy->flags & FLOW_FORWARD) || balance_is_new(w, copy, now, link))) {
		if (w->in.key.protocol == PROTO_UDP && !flow_expired(PROTO_UDP, copy, now))
			service_count(COUNT_PACKET_MOVED);
		flow_delete(&w->in.key);
		f = 0;
	}
	if (!f)
		return tc_new(skb, w, now, link);

	if (f->member != copy->member)
		f->member = copy->member;
	w->out.backend.addr = copy->addr;
	w->out.backend.port = copy->port;
	if (flow_may_open(w, copy->flags) && tc_open(now))
		copy->used = now;

	flags = packet_flags(w, 1);
	if (flags & ~copy->flags)
		entries_add_flags(flags, copy->flags & FLOW_SNAT);
	return copy->used == now ? BALANCE_DONE : tc_refresh(skb, w, f, now, link);
}

/* Reports whether the packet w->in is another node's tunnel datagram. No service gets these. */
static __always_inline int tc_is_tunnel(const struct work *w, enum service_link link)
{
	return link == LINK_UNDERLAY && w->in.key.protocol == PROTO_UDP &&
	       w->in.key.dport == bpf_htons(tunnel_port) && is_node(&w->in.key.dst);
}

/* Host routes the packet w->in, if it can be. Returns the verdict. */
static __always_inline int tc_route(
	struct __sk_buff *skb, __u32 network, enum service_link link, int has_flow)
{
	if (link == LINK_TUNNEL)
		return has_flow ? VERDICT_NEXT : route_from_tunnel(skb);
	if (network != ETH_HLEN || (!has_flow && link != LINK_POD))
		return VERDICT_NEXT;

	return route_packet(skb, link, has_flow);
}

/*
 * Returns the verdict for the packet w->in, whose ports are unknown. A fragment to an address that
 * only services have is lost without them. Other addresses have other sockets too.
 */
static __always_inline int tc_without_key(struct __sk_buff *skb, struct work *w, __u32 network)
{
	if (w->in.fragment == FRAGMENT_LATER && is_vip(&w->in.packet.dst))
		return service_drop(skb, COUNT_PACKET_FRAGMENT, network_base(network));
	return VERDICT_NEXT;
}

/* Translates a packet that comes in by a link. network is the offset of its IP header. Returns the
 * verdict. */
static __always_inline int tc_in(struct __sk_buff *skb, __u32 network, enum service_link link)
{
	__u32 mark = service_mark | (link == LINK_UNDERLAY ? pod_mark : 0);
	struct work *w = work_get();
	int did;

	/* A frame that a bridge only forwards is not for this host. */
	if (!w || skb->pkt_type != PACKET_HOST)
		return VERDICT_NEXT;
	if (service_parse(skb, network, &w->in.packet) != PACKET_IP)
		return VERDICT_NEXT;

	if (is_icmp(&w->in.packet)) {
		did = icmp_nat(skb, w, network, FLOW_IN);
		if (did > 0)
			skb->mark |= mark;
		return did < 0 ? drop(skb, REASON_SERVICE_QUOTE_REWRITE, network_base(network))
			       : VERDICT_NEXT;
	}

	if (!service_key(skb, w, network, FLOW_IN))
		return tc_without_key(skb, w, network);
	if (tc_is_tunnel(w, link))
		return VERDICT_NEXT;
	w->in.has_ethernet = network == ETH_HLEN;
	did = tc_find(skb, link);
	if (did == BALANCE_NO_SERVICE) /* the other fragments take the kernel's way, too */
		return w->in.fragment == FRAGMENT_NONE ? tc_route(skb, network, link, 0)
						       : VERDICT_NEXT;
	if (did != BALANCE_DONE)
		return service_drop(skb, did, network_base(network));

	if (w->in.fragment == FRAGMENT_FIRST)
		fragment_remember(FLOW_IN, flow_now());
	if (nat_rewrite(skb, w, network, REWRITE_DST))
		return drop(skb, REASON_SERVICE_REWRITE, network_base(network));
	skb->mark |= mark;
	return tc_route(skb, network, link, 1);
}

/*
 * Translates a packet that goes out by a link. network is the offset of its IP header. Returns the
 * verdict. A packet from a pod or a tunnel is of a flow only if it has service_mark.
 */
static __always_inline int tc_out(struct __sk_buff *skb, __u32 network)
{
	struct work *w = work_get();
	int did;

	if (!w || (skb->mark & (pod_mark | service_mark)) == pod_mark)
		return VERDICT_NEXT;
	if (service_parse(skb, network, &w->in.packet) != PACKET_IP)
		return VERDICT_NEXT;

	if (is_icmp(&w->in.packet)) {
		did = icmp_nat(skb, w, network, FLOW_OUT);
		return did < 0 ? drop(skb, REASON_SERVICE_QUOTE_REWRITE, network_base(network))
			       : VERDICT_NEXT;
	}

	if (!service_key(skb, w, network, FLOW_OUT) || !may_have_flow(w))
		return VERDICT_NEXT;
	return nat_source(skb, network);
}
