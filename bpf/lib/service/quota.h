/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The quota of flows of each client in the cluster, so that no client fills the flow tables.
 *
 * A client's address has flow_quota slots, and each of its flows holds one. The slots are a
 * set-associative table: a flow may hold one of QUOTA_WAYS slots, which a hash of its ends selects.
 * If all of them are held, the client's closed or longest idle flow among them is evicted.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "service/conntrack.h"
#include "service/flow.h"
#include "service/flow_end.h"
#include "service/work.h"

/* Slots of an address: a share of the flow tables, which Go sets. At most 65536; 0 disables it. */
volatile const __u32 flow_quota = SERVICE_TCP_MAX / 64;

/* How many slots a flow may hold. */
#define QUOTA_WAYS 8

/* The flow that holds a slot, as the value of the slot. The client's address is in the key. */
struct quota_slot {
	struct addr dst;
	__be16 dport;
	__be16 sport;
	__u32 protocol;
};

/* Go sets the size before a program is loaded. */
#define SERVICE_QUOTAS_MAX 65536

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_QUOTAS_MAX);
	__type(key, struct quota_key);
	__type(value, struct quota_slot);
} service_quotas SEC(".maps");

/* What quota_slot_age returns for a slot that no flow holds, and for one of the flow itself. */
#define QUOTA_FREE 0x7fffffff
#define QUOTA_HELD (-1)

/*
 * Returns the slot of w->scratch.quota_key, or NULL if no flow holds it. Sets
 * w->scratch.forward_key to the forward key of the flow that does.
 */
static __always_inline struct quota_slot *quota_slot_lookup(struct work *w)
{
	struct quota_slot *s;

	s = bpf_map_lookup_elem(&service_quotas, &w->scratch.quota_key);
	if (!s)
		return 0;

	w->scratch.forward_key.src = w->scratch.quota_key.client;
	w->scratch.forward_key.dst = s->dst;
	w->scratch.forward_key.sport = s->sport;
	w->scratch.forward_key.dport = s->dport;
	w->scratch.forward_key.protocol = s->protocol;
	w->scratch.forward_key.hook = FLOW_IN;
	return s;
}

/* Reports whether w->scratch.forward_key is the flow of w->in.key. */
static __always_inline int quota_slot_is_own(const struct work *w)
{
	return w->scratch.forward_key.sport == w->in.key.sport &&
	       w->scratch.forward_key.dport == w->in.key.dport &&
	       w->scratch.forward_key.protocol == w->in.key.protocol &&
	       same_addr(&w->scratch.forward_key.dst, &w->in.key.dst);
}

/*
 * Returns for how many seconds the flow in a slot has had no packets, or QUOTA_FREE or QUOTA_HELD.
 * A flow that is closing, or that the client does not use for more than a SYN, counts as a day
 * older.
 */
__noinline int quota_slot_age(__u32 number, __u32 now)
{
	struct work *w = work_get();
	struct flow *f;
	__s32 age;

	if (!w)
		return QUOTA_FREE;

	w->scratch.quota_key.number = number;
	if (!quota_slot_lookup(w))
		return QUOTA_FREE;
	if (quota_slot_is_own(w))
		return QUOTA_HELD;

	f = &w->scratch.found;
	if (!flow_read(&w->scratch.forward_key, f) || !(f->flags & FLOW_FORWARD))
		return QUOTA_FREE;

	age = now - f->used;
	if (age < 0) /* another processor used it in a later second */
		age = 0;
	if (age > TIMEOUT_TCP)
		age = TIMEOUT_TCP;
	if ((f->flags & (FLOW_CLIENT_SENT | FLOW_CLOSING)) != FLOW_CLIENT_SENT)
		age += TIMEOUT_TCP;
	return age;
}

/*
 * Gives the slot of w->scratch.quota_key to the flow of w->in.key and evicts the flow that held it.
 * Returns 0 if another processor was faster.
 */
static __always_inline int quota_slot_take(struct work *w)
{
	struct quota_slot own = {.dst = w->in.key.dst,
		.dport = w->in.key.dport,
		.sport = w->in.key.sport,
		.protocol = w->in.key.protocol};
	int was_held = quota_slot_lookup(w) != 0, took;

	if (was_held && quota_slot_is_own(w))
		return 1;

	/* The processor that deletes the slot ends its flow, even if another one takes the slot. */
	if (was_held && bpf_map_delete_elem(&service_quotas, &w->scratch.quota_key))
		return 0;

	took = !bpf_map_update_elem(&service_quotas, &w->scratch.quota_key, &own, BPF_NOEXIST);
	if (was_held)
		flow_end();
	return took;
}

/*
 * Gives the flow of w->in.key a slot, unless it holds one. Evicts another flow of the client if no
 * slot is free. Returns 0 if the flow gets none. Leaves w->in and w->out as they are.
 */
__noinline int quota_take(__u32 now)
{
	struct work *w = work_get();
	__u32 first, best = 0, number;
	__s32 age, oldest = -1;

	if (!w || !flow_quota)
		return 1;

	w->scratch.quota_key.client = w->in.key.src;

	first = (w->in.key.sport ^ (__u32)w->in.key.dport << 16 ^ w->in.key.dst.word[3] ^
			w->in.key.protocol) *
		0x9e3779b1; /* any odd number: the high bits depend on all */
	first >>= 16;

	for (int i = 0; i < QUOTA_WAYS; i++) {
		number = (first + i) % flow_quota;
		age = quota_slot_age(number, now);
		if (age == QUOTA_HELD)
			return 1;
		if (age > oldest) {
			oldest = age;
			best = number;
		}
		if (age == QUOTA_FREE)
			break;
	}

	w->scratch.quota_key.number = best;
	return quota_slot_take(w);
}
