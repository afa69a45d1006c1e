/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flows of packets to services: which backend one gets, and the entries that it needs. */
#pragma once

#include "kernel.h"
#include "flow.h"
#include "known.h"
#include "nodes.h"
#include "packet.h"
#include "service.h"

/* How often another backend, or another port, is tried. */
#define BALANCE_TRIES 4
#define BALANCE_PORTS 8
#define BALANCE_FREE  2 /* as many have to be free */

/* Ports that this node sends from, with an address that no host or pod has: all but the reserved.
 */
#define SELF_PORT_MIN 1024
#define SELF_PORTS    (65536 - SELF_PORT_MIN)

/* Where nobody listens (RFC 863): the kernel refuses what comes there. */
#define REFUSING_PORT 9

/* Where a packet came from. */
enum service_link {
	LINK_OUTSIDE,
	LINK_POD,
	LINK_TUNNEL,
};

/* Addresses of this node, of which none is zero. */
enum service_address {
	SELF_IPV4, /* what packets to other nodes are sent from */
	SELF_IPV6,
	NODE_IPV4, /* where the kernel refuses */
	NODE_IPV6,
	SERVICE_ADDRESSES,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICE_ADDRESSES);
	__type(key, __u32);
	__type(value, struct addr);
} service_self SEC(".maps");

/* What a program works on, which is too large for its stack. */
struct balance {
	struct packet p;
	struct packet quoted;
	struct service_flow_key key; /* the packet as it is at the hook */
	struct service_flow_key other;
	struct service_flow_key place; /* only src, sport and hook are ever set */
	struct service_flow_key ended;
	struct service_flow flow;
	struct service_front_key at;
	struct service_front front;
	struct service_slot to;
	__u8 tcp_flags; /* 0 is no TCP */
	__u8 ethernet;	/* whether the packet has such a header */
	__u8 own;	/* whether the packet was found to be of the pod; see own.h */
	__u16 apart;	/* FLOW_APART if the flow whose entries are made is */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct balance);
} service_work SEC(".maps");

static __always_inline struct balance *balance_work(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&service_work, &zero);
}

/*
 * The functions that are not inlined have no parameters but numbers, so that the verifier looks at
 * each of them once and not wherever it is called; they find what they work on by themselves.
 */

/* Of which flow the entries are made. */
#define FLOW_KNOWN  0
#define FLOW_NEW    1
#define FLOW_URGENT 2 /* a new one, which may have the port of one that is closed */

/*
 * Makes ended the key of the client's packets of a flow: that of whose answers f is the entry that
 * other is the key of, as they leave.
 */
static __always_inline void ended_by(struct balance *w, const struct service_flow *f)
{
	w->ended.src = w->other.dst;
	w->ended.sport = w->other.dport;
	w->ended.dst = f->addr;
	w->ended.dport = f->port;
	w->ended.protocol = w->other.protocol;
	w->ended.hook = FLOW_IN;
}

/*
 * Whether the new flow may have the entry of other from a flow that is closed. That of answers as
 * they leave is of the same client, whatever services the two have.
 */
static __always_inline int flow_takes(const struct balance *w, const struct service_flow *have)
{
	const struct addr *client = w->other.hook == FLOW_OUT ? &have->addr : &w->flow.addr;

	return flow_closed(have, client, w->flow.used);
}

/*
 * Makes flow the entry of other, or sees that it is. 0 is that another flow has that key. One that
 * is there keeps its state, unless the flow is new.
 */
__noinline int flow_put(int is_new)
{
	struct balance *w = balance_work();
	struct service_flow *have;

	if (!w)
		return 0;
	/* The client, or the address of this node's that stands for him: one is an end of every
	 * entry. */
	known_add(&service_known, &w->other.dst);
	/* A new flow's is hardly ever there. */
	if (is_new && !bpf_map_update_elem(&service_flows, &w->other, &w->flow, BPF_NOEXIST))
		return 1;
	have = bpf_map_lookup_elem(&service_flows, &w->other);
	if (have && have->port == w->flow.port && same_addr(&have->addr, &w->flow.addr)) {
		have->used = w->flow.used;
		if (is_new)
			have->flags = w->flow.flags;
		return 1;
	}
	if (have) {
		if (!flow_over(w->other.protocol, have, w->flow.used) &&
			!(is_new == FLOW_URGENT && flow_takes(w, have)))
			return 0;
		/* What the client still sends of the former flow would change the new one. */
		if (w->other.hook == FLOW_OUT) {
			ended_by(w, have);
			bpf_map_delete_elem(&service_flows, &w->ended);
		}
		bpf_map_delete_elem(&service_flows, &w->other);
	}
	/* Who was faster has it. */
	return bpf_map_update_elem(&service_flows, &w->other, &w->flow, BPF_NOEXIST) == 0;
}

/*
 * The entry of other, of answers as they come to a port of this node, if they are for this client;
 * the port may be another's by now.
 */
static __always_inline struct service_flow *flow_to(
	struct balance *w, const struct addr *client, __be16 port)
{
	struct service_flow *f = bpf_map_lookup_elem(&service_flows, &w->other);

	return f && f->port == port && same_addr(&f->addr, client) ? f : 0;
}

/* NULL is that this node has none. */
static __always_inline struct addr *service_address(const struct balance *w, __u32 which)
{
	__u32 at = which + (w->p.family == 6);
	struct addr *a = bpf_map_lookup_elem(&service_self, &at);

	if (!a || (!a->word[0] && !a->word[1] && !a->word[3]))
		return 0;
	return a;
}

/* Makes other the key of packets to, or from, the backend. */
static __always_inline void to_backend(struct balance *w, enum flow_hook hook)
{
	w->other.src = w->key.src;
	w->other.sport = w->key.sport;
	w->other.dst = w->to.addr;
	w->other.dport = w->to.port;
	w->other.protocol = w->key.protocol;
	w->other.hook = hook;
}

/* Makes other the key of what this backend answers to the packets of key. */
static __always_inline void answers_of(struct balance *w, const struct service_flow_key *key,
	const struct addr *backend, __be16 port, enum flow_hook hook)
{
	w->other.src = *backend;
	w->other.sport = port;
	w->other.dst = key->src;
	w->other.dport = key->sport;
	w->other.protocol = key->protocol;
	w->other.hook = hook;
}

static __always_inline void from_backend(struct balance *w, enum flow_hook hook)
{
	answers_of(w, &w->key, &w->to.addr, w->to.port, hook);
}

/* Makes flow an entry that gives this address. */
static __always_inline void becomes(
	struct balance *w, const struct addr *addr, __be16 port, __u16 flags, __u32 now)
{
	w->flow.addr = *addr;
	w->flow.port = port;
	w->flow.flags = flags;
	w->flow.used = now;
	w->flow.link = 0;
}

/* The flags of an entry that is made: of a new flow, or in the place of one that was forgotten. */
static __always_inline __u16 flow_flags(const struct balance *w, int is_new)
{
	return w->apart | (is_new || w->tcp_flags & TCP_SYN ? 0 : FLOW_OPEN);
}

/* Sees to it that what the backend answers to port comes to the client. */
static __always_inline int answer_to(
	struct balance *w, const struct addr *self, __be16 port, __u32 now, int is_new)
{
	from_backend(w, FLOW_IN);
	w->other.dst = *self;
	w->other.dport = port;
	becomes(w, &w->key.src, w->key.sport, flow_flags(w, is_new), now);
	return flow_put(is_new);
}

/* Sees to the two entries of a flow whose packets are sent by this node. 0 or what to count. */
__noinline int flow_from_self(__u32 now, int is_new)
{
	struct balance *w = balance_work();
	struct service_flow *have;
	struct addr *self;
	__be16 port;

	if (!w)
		return COUNT_PACKET_ADDRESS;
	self = service_address(w, SELF_IPV4);
	if (!self)
		return COUNT_PACKET_ADDRESS;
	to_backend(w, FLOW_OUT);
	have = is_new ? 0 : bpf_map_lookup_elem(&service_flows, &w->other);
	if (have) {
		have->used = now;
		return answer_to(w, &have->addr, have->port, now, FLOW_KNOWN) ? 0
									      : COUNT_PACKET_PORT;
	}
	for (int i = 0; i < BALANCE_PORTS; i++) {
		port = bpf_htons(
			SELF_PORT_MIN + (__u16)(((__u64)bpf_get_prandom_u32() * SELF_PORTS) >> 32));
		if (!answer_to(w, self, port, now, i < BALANCE_FREE ? FLOW_NEW : FLOW_URGENT))
			continue;
		to_backend(w, FLOW_OUT);
		becomes(w, self, port, FLOW_SELF, now);
		if (bpf_map_update_elem(&service_flows, &w->other, &w->flow, BPF_ANY))
			break;
		return 0;
	}
	return COUNT_PACKET_PORT;
}

/*
 * Sees to all entries of the flow of key to the backend but the first. 0 or what to count. The
 * table forgets what was not used for long, each entry for itself, so this is done every second in
 * which there are packets.
 */
__noinline int flow_keep(__u32 now, int is_new, int from_self)
{
	struct balance *w = balance_work();

	if (!w)
		return COUNT_PACKET_PORT;
	from_backend(w, FLOW_OUT);
	becomes(w, &w->key.dst, w->key.dport, flow_flags(w, is_new), now);
	if (!flow_put(is_new))
		return COUNT_PACKET_PORT;
	if (from_self)
		return flow_from_self(now, is_new);
	w->other.hook = FLOW_IN;
	becomes(w, &w->key.src, w->key.sport, flow_flags(w, is_new), now);
	return flow_put(is_new) ? 0 : COUNT_PACKET_PORT;
}

/* Sets flags of the entry of other, if there is one; gives it. */
static __always_inline struct service_flow *flow_mark(struct balance *w, __u16 flags)
{
	struct service_flow *f = bpf_map_lookup_elem(&service_flows, &w->other);

	if (f && flags & ~f->flags)
		f->flags |= flags;
	return f;
}

/*
 * Notes what the client did at the entries by which others tell whether the flow is over: that of
 * answers as they leave, and as they come, which is what keeps a port of this node from others.
 */
__noinline int flow_note(int flags, int from_self)
{
	struct balance *w = balance_work();
	struct service_flow *f;

	if (!w)
		return 0;
	from_backend(w, FLOW_OUT);
	flow_mark(w, flags);
	if (!from_self) {
		w->other.hook = FLOW_IN;
		flow_mark(w, flags);
		return 0;
	}
	to_backend(w, FLOW_OUT);
	f = flow_mark(w, flags);
	if (!f)
		return 0;
	from_backend(w, FLOW_IN);
	w->other.dst = f->addr;
	w->other.dport = f->port;
	f = flow_to(w, &w->key.src, w->key.sport);
	if (f && flags & ~f->flags)
		f->flags |= flags;
	return 0;
}

/*
 * Deletes the entry of other, which is not a client's, unless its flow is open: then the backend's
 * answer tells whether it still is.
 */
static __always_inline void flow_drop(struct balance *w, __u32 now)
{
	struct service_flow *f = bpf_map_lookup_elem(&service_flows, &w->other);

	if (!f || f->flags & FLOW_FORWARD)
		return;
	if (!flow_open(f->flags) || flow_over(w->other.protocol, f, now))
		bpf_map_delete_elem(&service_flows, &w->other);
	else
		f->flags |= FLOW_DOUBT;
}

/*
 * The ends of key begin a connection without a service. What is left of one that they had by a
 * service would change its answers.
 */
__noinline int flow_forget(__u32 now)
{
	struct balance *w = balance_work();

	if (!w)
		return 0;
	answers_of(w, &w->key, &w->key.dst, w->key.dport, FLOW_OUT);
	flow_drop(w, now);
	w->other.hook = FLOW_IN;
	flow_drop(w, now);
	return 0;
}

/* A client's number in the map of affinity; cookies of namespaces have not the highest bit. */
static __always_inline __u64 service_client_of(const struct addr *a)
{
	__u64 high = (__u64)a->word[0] << 32 | a->word[1],
	      low = (__u64)a->word[2] << 32 | a->word[3];

	return (high * 31 ^ low) | 1ULL << 63;
}

/* Makes to where the kernel refuses. */
static __always_inline int to_refusal(struct balance *w)
{
	struct addr *node = service_address(w, NODE_IPV4);

	if (!node)
		return 0;
	w->to.addr = *node;
	w->to.port = bpf_htons(REFUSING_PORT);
	w->to.flags = SERVICE_SLOT_LOCAL;
	return 1;
}

/*
 * Whose policies hold for key. What another node's pod sends to a node's address is for that node's
 * own port, so it is judged as what comes from outside.
 */
static __always_inline __u8 balance_scope(const struct balance *w, int link)
{
	if (link == LINK_OUTSIDE || (link == LINK_TUNNEL && is_node(&w->key.dst)))
		return SERVICE_OUTSIDE;
	return SERVICE_INSIDE;
}

/* Makes at where key goes, of those whose policies hold. */
static __always_inline void balance_ask(struct balance *w, int link)
{
	w->at.addr = w->key.dst;
	w->at.port = w->key.dport;
	w->at.protocol = w->key.protocol;
	w->at.scope = balance_scope(w, link);
}

/* Whether the source of key may have what front is; pods are not held back, whatever they ask. */
static __always_inline int balance_admits(const struct balance *w, int link)
{
	return link != LINK_OUTSIDE || service_admits(w->front.sources, &w->key.src);
}

/* What balance_new says beside what to count for a packet that is dropped. */
#define BALANCE_CHOSEN	   0
#define BALANCE_NO_SERVICE (-1)

/* Chooses a backend, or a refusal, for the flow of key; to and front say which. */
__noinline int balance_choose(int link)
{
	struct balance *w = balance_work();
	__u64 client;

	if (!w)
		return BALANCE_NO_SERVICE;
	client = service_client_of(&w->key.src);
	switch (service_choose(&w->at, client, &w->front, &w->to)) {
	case SERVICE_NONE:
		return BALANCE_NO_SERVICE;
	case SERVICE_UNSTEADY:
		return COUNT_PACKET_UNSTEADY;
	case SERVICE_REFUSED:
		if (!balance_admits(w, link))
			return COUNT_PACKET_SOURCE;
		if (link == LINK_OUTSIDE && w->front.flags & SERVICE_FLAG_DROP)
			return COUNT_PACKET_LOCAL;
		if (!to_refusal(w))
			return COUNT_PACKET_ADDRESS;
		service_count(COUNT_PACKET_REFUSED);
		return BALANCE_CHOSEN;
	default:
		if (!balance_admits(w, link))
			return COUNT_PACKET_SOURCE;
		service_keep(&w->front, client, &w->to);
		return BALANCE_CHOSEN;
	}
}

/* FLOW_APART if the flow of key to the backend may be; see route.h. */
int route_apart(struct __sk_buff *skb);

/* Makes the flow of key, if it goes to a service: flow is then its first entry. */
__noinline int balance_new(struct __sk_buff *skb, __u32 now, int link)
{
	int from_self = 0, why = BALANCE_NO_SERVICE;
	struct balance *w = balance_work();
	struct service_flow *have;

	if (!w)
		return BALANCE_NO_SERVICE;
	balance_ask(w, link);
	for (int i = 0; i < BALANCE_TRIES; i++) {
		why = balance_choose(link);
		if (why != BALANCE_CHOSEN)
			return why;
		/* This node's pods may be seen by other nodes; nobody may be seen by himself. */
		from_self = (link != LINK_POD && !(w->to.flags & SERVICE_SLOT_LOCAL)) ||
			    same_addr(&w->to.addr, &w->key.src);
		w->apart = link == LINK_OUTSIDE ? route_apart(skb) : 0;
		why = flow_keep(now, i < BALANCE_FREE ? FLOW_NEW : FLOW_URGENT, from_self);
		if (why != COUNT_PACKET_PORT)
			break;
		/* The client has such a flow to that backend by another of its services. */
	}
	if (why != BALANCE_CHOSEN)
		return why;
	becomes(w, &w->to.addr, w->to.port, FLOW_FORWARD | w->apart | (from_self ? FLOW_SELF : 0),
		now);
	if (bpf_map_update_elem(&service_flows, &w->key, &w->flow, BPF_NOEXIST)) {
		/* Another packet of the flow was faster, and where it goes all go. */
		have = bpf_map_lookup_elem(&service_flows, &w->key);
		if (!have)
			return COUNT_PACKET_PORT;
		w->flow = *have;
	} else if (w->to.port != bpf_htons(REFUSING_PORT)) {
		service_count(w->key.protocol == PROTO_UDP ? COUNT_PACKET_UDP : COUNT_PACKET_TCP);
	}
	return BALANCE_CHOSEN;
}
