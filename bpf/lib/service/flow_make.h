/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Stores and refreshes the entries of a flow in the flow table; flow.h names them. */
#pragma once

#include "kernel.h"
#include "guard/nodes.h"
#include "guard/ranges.h"
#include "packet/addr.h"
#include "packet/l4.h"
#include "service/bloom.h"
#include "service/conntrack.h"
#include "service/count.h"
#include "service/flow.h"
#include "service/node_addr.h"
#include "service/settings.h"
#include "service/work.h"

/* How many ports are tried for SNAT. The first SNAT_FREE_PORTS tries take only free ports. */
#define SNAT_PORTS_TRIED 8
#define SNAT_FREE_PORTS	 2

/* Ports for SNAT: all but the reserved ones of the SNAT address, which no host or pod has. */
#define SNAT_PORT_MIN 1024
#define SNAT_PORTS    (65536 - SNAT_PORT_MIN)

/* The flow whose entries are stored. */
#define STORE_REFRESH 0 /* it is in the table */
#define STORE_NEW     1
#define STORE_URGENT  2 /* it is new and may take the port of a closed flow */

/*
 * Sets w->scratch.forward_key to the forward key of the flow whose egress reply entry (key
 * w->scratch.entry_key) is f.
 */
static __always_inline void forward_key_set(struct work *w, const struct flow *f)
{
	w->scratch.forward_key.src = w->scratch.entry_key.dst;
	w->scratch.forward_key.sport = w->scratch.entry_key.dport;
	w->scratch.forward_key.dst = f->addr;
	w->scratch.forward_key.dport = f->port;
	w->scratch.forward_key.protocol = w->scratch.entry_key.protocol;
	w->scratch.forward_key.hook = FLOW_IN;
}

/*
 * Sets w->scratch.entry_key to the key of packets from the client, as they are at the hook
 * FLOW_OUT, to the backend w->out.backend.
 */
static __always_inline void entry_key_to_backend(struct work *w, enum flow_hook hook)
{
	w->scratch.entry_key.src = w->in.key.src;
	w->scratch.entry_key.sport = w->in.key.sport;
	w->scratch.entry_key.dst = w->out.backend.addr;
	w->scratch.entry_key.dport = w->out.backend.port;
	w->scratch.entry_key.protocol = w->in.key.protocol;
	w->scratch.entry_key.hook = hook;
}

/* Sets w->scratch.entry_key to the key of a backend's replies to packets of key. */
static __always_inline void entry_key_of_replies(struct work *w, const struct flow_key *key,
	const struct addr *backend, __be16 port, enum flow_hook hook)
{
	w->scratch.entry_key.src = *backend;
	w->scratch.entry_key.sport = port;
	w->scratch.entry_key.dst = key->src;
	w->scratch.entry_key.dport = key->sport;
	w->scratch.entry_key.protocol = key->protocol;
	w->scratch.entry_key.hook = hook;
}

/* Sets w->scratch.entry_key to the key of replies of w->out.backend to the packet w->in. */
static __always_inline void entry_key_from_backend(struct work *w, enum flow_hook hook)
{
	entry_key_of_replies(w, &w->in.key, &w->out.backend.addr, w->out.backend.port, hook);
}

/* Sets w->out.entry to an entry that rewrites to addr and port. */
static __always_inline void entry_set(
	struct work *w, const struct addr *addr, __be16 port, __u32 flags, __u32 now)
{
	w->out.entry.addr = *addr;
	w->out.entry.port = port;
	w->out.entry.flags = flags;
	w->out.entry.used = now;
	w->out.entry.link = 0;
}

/*
 * Reports whether the new flow may take the entry of w->scratch.entry_key from a closed flow, whose
 * entry is have. All egress reply entries of a key belong to one client, which may use several
 * services.
 */
static __always_inline int entry_reusable(const struct work *w, const struct flow *have)
{
	const struct addr *client =
		w->scratch.entry_key.hook == FLOW_OUT ? &have->addr : &w->out.entry.addr;

	return flow_reusable(have, client, w->out.entry.used);
}

/*
 * Stores w->out.entry under w->scratch.entry_key, whose entry is have (a copy of it in
 * w->scratch.found), for the same flow. An entry that is there keeps its flags, unless the flow is
 * new. If the flow was established since, the entry is copied to the table of such flows.
 */
static __always_inline int entry_store_again(struct work *w, struct flow *have, int kind)
{
	if (kind)
		return flow_replace(&w->scratch.entry_key, &w->out.entry) == 0;

	if (w->out.flags & ~w->scratch.found.flags & FLOW_CLIENT_SENT) {
		w->scratch.found.used = w->out.entry.used;
		return flow_establish(
			&w->scratch.entry_key, have, &w->scratch.found, w->out.flags & ~FLOW_FIXED);
	}
	have->used = w->out.entry.used;
	return 1;
}

/*
 * Stores w->out.entry under w->scratch.entry_key. Returns 0 if another flow has that key. kind is
 * one of STORE_*.
 */
__noinline int entry_store(int kind)
{
	struct work *w = work_get();
	struct flow *have, *found;

	if (!w)
		return 0;
	found = &w->scratch.found;

	/* The destination of the first entry is the client, or the SNAT address. One of the two is
	 * an end of every packet of the flow. */
	bloom_add_flow(&w->scratch.entry_key.dst);

	/* The key of a new flow is hardly ever in the tables. */
	if (kind && !flow_in_tcp(&w->scratch.entry_key) &&
		!flow_insert(&w->scratch.entry_key, &w->out.entry))
		return 1;

	have = flow_read(&w->scratch.entry_key, found);
	if (have && found->port == w->out.entry.port && same_addr(&found->addr, &w->out.entry.addr))
		return entry_store_again(w, have, kind);

	if (have) {
		if (!flow_expired(w->scratch.entry_key.protocol, found, w->out.entry.used) &&
			!(kind == STORE_URGENT && entry_reusable(w, found)))
			return 0;

		/* Late packets of the former client flow would change the new one. */
		if (w->scratch.entry_key.hook == FLOW_OUT) {
			forward_key_set(w, found);
			flow_delete(&w->scratch.forward_key);
		}
		flow_delete(&w->scratch.entry_key);
	}

	/* If another processor stored its flow meanwhile, that one stays. */
	return flow_insert(&w->scratch.entry_key, &w->out.entry) == 0;
}

/*
 * Returns the ingress reply entry of w->scratch.entry_key if it is of this client, or NULL. Another
 * flow may have the SNAT port by now.
 */
static __always_inline struct flow *entry_of_client(
	struct work *w, const struct addr *client, __be16 port)
{
	struct flow *f = flow_read(&w->scratch.entry_key, &w->scratch.found);

	return f && w->scratch.found.port == port && same_addr(&w->scratch.found.addr, client) ? f
											       : 0;
}

/*
 * Stores the ingress reply entry of a flow with SNAT: what the backend sends to addr and port goes
 * to the client. Returns 0 if another flow has the port.
 */
static __always_inline int snat_reply_store(
	struct work *w, const struct addr *addr, __be16 port, __u32 now, int kind)
{
	entry_key_from_backend(w, FLOW_IN);
	w->scratch.entry_key.dst = *addr;
	w->scratch.entry_key.dport = port;
	entry_set(w, &w->in.key.src, w->in.key.sport, w->out.flags, now);
	return entry_store(kind);
}

/*
 * Stores the SNAT entry and the ingress reply entry of the flow, with a free port of this node if
 * it has none yet. Returns 0 or the counter of a drop.
 */
__noinline int snat_store(__u32 now, int kind)
{
	struct work *w = work_get();
	__u32 ports = SNAT_PORTS;
	struct flow *have;
	struct addr *addr;
	__be16 port;

	if (!w)
		return COUNT_PACKET_ADDRESS;

	/* A backend outside the cluster cannot reply to an address of the pod prefixes. */
	if (in_ranges(&w->out.backend.addr) || is_node(&w->out.backend.addr)) {
		addr = node_addr(w->in.packet.family, SNAT_IPV4);
	} else {
		addr = node_addr(w->in.packet.family, NODE_IPV4);
		ports = node_ports_end - SNAT_PORT_MIN;
	}
	if (!addr)
		return COUNT_PACKET_ADDRESS;

	entry_key_to_backend(w, FLOW_OUT);
	have = kind ? 0 : flow_read(&w->scratch.entry_key, &w->scratch.found);
	if (have) {
		entry_set(w, &w->scratch.found.addr, w->scratch.found.port,
			FLOW_SNAT | w->out.flags, now);
		if (!entry_store_again(w, have, STORE_REFRESH))
			return COUNT_PACKET_PORT;
		return snat_reply_store(
			       w, &w->out.entry.addr, w->out.entry.port, now, STORE_REFRESH)
			       ? 0
			       : COUNT_PACKET_PORT;
	}

	for (int i = 0; i < SNAT_PORTS_TRIED; i++) {
		port = bpf_htons(
			SNAT_PORT_MIN + (__u16)(((__u64)bpf_get_prandom_u32() * ports) >> 32));
		if (!snat_reply_store(
			    w, addr, port, now, i < SNAT_FREE_PORTS ? STORE_NEW : STORE_URGENT))
			continue;

		entry_key_to_backend(w, FLOW_OUT);
		entry_set(w, addr, port, FLOW_SNAT | w->out.flags, now);
		if (flow_replace(&w->scratch.entry_key, &w->out.entry))
			break;
		return 0;
	}

	return COUNT_PACKET_PORT;
}

/*
 * Stores all entries of the flow of w->in.key to w->out.backend but the forward entry. Returns 0 or
 * the counter of a drop. The table evicts each entry by its own age, so the caller calls this in
 * every second in which the flow has packets.
 */
__noinline int entries_store(__u32 now, int kind, int snat)
{
	struct work *w = work_get();

	if (!w)
		return COUNT_PACKET_PORT;

	entry_key_from_backend(w, FLOW_OUT);
	entry_set(w, &w->in.key.dst, w->in.key.dport, w->out.flags | (snat ? 0 : FLOW_SHARED), now);
	if (!entry_store(kind))
		return COUNT_PACKET_PORT;

	return snat ? snat_store(now, kind) : 0;
}

/* Adds flags to the entry of a key. Returns the entry, or NULL. Copies it to w->scratch.found. */
static __always_inline struct flow *entry_add_flags(
	struct work *w, const struct flow_key *key, __u32 flags)
{
	struct flow *f = flow_read(key, &w->scratch.found);

	if (f)
		flow_add_flags(key, f, flags);
	return f;
}

/*
 * Adds the client's flags to all entries of the flow of w->in.key to w->out.backend. The reply
 * entries show whether the flow has ended, and the ingress one holds the SNAT port.
 */
__noinline int entries_add_flags(int flags, int snat)
{
	struct work *w = work_get();
	struct flow *f;

	if (!w)
		return 0;

	entry_add_flags(w, &w->in.key, flags);
	entry_key_from_backend(w, FLOW_OUT);
	entry_add_flags(w, &w->scratch.entry_key, flags);

	if (!snat)
		return 0;

	entry_key_to_backend(w, FLOW_OUT);
	f = entry_add_flags(w, &w->scratch.entry_key, flags);
	if (!f)
		return 0;

	entry_key_from_backend(w, FLOW_IN);
	w->scratch.entry_key.dst = w->scratch.found.addr;
	w->scratch.entry_key.dport = w->scratch.found.port;
	f = entry_of_client(w, &w->in.key.src, w->in.key.sport);
	if (f)
		flow_add_flags(&w->scratch.entry_key, f, flags);
	return 0;
}
