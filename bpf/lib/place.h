/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How many flows a client inside has: as many as its address has places, so that nobody inside
 * fills the table. A place is an entry of the table too. A flow gets one of a few that follow from
 * its ends; if none is free, the flow that is there and matters least is ended.
 */
#pragma once

#include "kernel.h"
#include "balance.h"

/* The places of an address: a share of the table, which Go sets. No more than 65536. */
volatile const __u32 flow_places = SERVICE_FLOWS_MAX / 128;

/* How many of them a flow can have. */
#define PLACE_WAYS 8

/* The flow that has a place, as the value of its entry; the client's address is in the key. */
struct service_place {
	struct addr dst;
	__be16 dport;
	__be16 sport;
	__u32 used;
	__u64 protocol;
};

_Static_assert(sizeof(struct service_place) == sizeof(struct service_flow), "one map has both");

/* What place_age says of a place that nobody has, and of that of the flow of key. */
#define PLACE_FREE 0x7fffffff
#define PLACE_MINE (-1)

/*
 * Ends the flow of ended, the key of a client's packets: which its other entries are follows from
 * the first.
 */
__noinline int flow_end(void)
{
	struct balance *w = balance_work();
	struct service_flow *f;
	__u16 flags;

	if (!w)
		return 0;
	f = bpf_map_lookup_elem(&service_flows, &w->ended);
	if (!f || !(f->flags & FLOW_FORWARD))
		return 0;
	flags = f->flags;
	answers_of(w, &w->ended, &f->addr, f->port, FLOW_OUT);
	bpf_map_delete_elem(&service_flows, &w->ended);
	f = bpf_map_lookup_elem(&service_flows, &w->other);
	if (!f || f->port != w->ended.dport || !same_addr(&f->addr, &w->ended.dst))
		return 0; /* the client has one to that backend by another service */
	bpf_map_delete_elem(&service_flows, &w->other);
	if (flags & FLOW_SELF) {
		w->ended.dst = w->other.src;
		w->ended.dport = w->other.sport;
		w->ended.hook = FLOW_OUT;
		f = bpf_map_lookup_elem(&service_flows, &w->ended);
		if (!f)
			return 0;
		w->other.dst = f->addr;
		w->other.dport = f->port;
		bpf_map_delete_elem(&service_flows, &w->ended);
	}
	w->other.hook = FLOW_IN;
	if (flow_to(w, &w->ended.src, w->ended.sport))
		bpf_map_delete_elem(&service_flows, &w->other);
	return 0;
}

/* The place of place, NULL is that nobody has it. ended becomes its flow. */
static __always_inline struct service_place *place_look(struct balance *w)
{
	struct service_place *p;

	p = (struct service_place *)bpf_map_lookup_elem(&service_flows, &w->place);
	if (!p)
		return 0;
	w->ended.src = w->place.src;
	w->ended.dst = p->dst;
	w->ended.sport = p->sport;
	w->ended.dport = p->dport;
	w->ended.protocol = p->protocol;
	w->ended.hook = FLOW_IN;
	return p;
}

/* Whether ended is the flow of key. */
static __always_inline int place_mine(const struct balance *w)
{
	return w->ended.sport == w->key.sport && w->ended.dport == w->key.dport &&
	       w->ended.protocol == w->key.protocol && same_addr(&w->ended.dst, &w->key.dst);
}

/* For how long the flow in this place has had no packets, in seconds: a day more where it is no
 * connection that its client goes on with. */
__noinline int place_age(__u32 number, __u32 now)
{
	struct balance *w = balance_work();
	struct service_flow *f;
	__s32 age;

	if (!w)
		return PLACE_FREE;
	w->place.sport = number;
	if (!place_look(w))
		return PLACE_FREE;
	if (place_mine(w))
		return PLACE_MINE;
	f = bpf_map_lookup_elem(&service_flows, &w->ended);
	if (!f || !(f->flags & FLOW_FORWARD))
		return PLACE_FREE;
	age = now - f->used;
	if (age < 0) /* another processor used it in a later second */
		age = 0;
	if (age > FLOW_PATIENCE_TCP)
		age = FLOW_PATIENCE_TCP;
	if ((f->flags & (FLOW_SPOKE | FLOW_STATE)) != FLOW_SPOKE)
		age += FLOW_PATIENCE_TCP;
	return age;
}

/* Has the flow of key in the place of place. 0 is that another processor was faster. */
static __always_inline int place_take(struct balance *w, __u32 now)
{
	struct service_place mine = {.dst = w->key.dst,
		.dport = w->key.dport,
		.sport = w->key.sport,
		.used = now,
		.protocol = w->key.protocol};
	int had = place_look(w) != 0, took;

	if (had && place_mine(w))
		return 1;
	/* Who deletes a place has it, and ends its flow, whoever takes it meanwhile. */
	if (had && bpf_map_delete_elem(&service_flows, &w->place))
		return 0;
	took = !bpf_map_update_elem(&service_flows, &w->place, &mine, BPF_NOEXIST);
	if (had)
		flow_end();
	return took;
}

/*
 * Sees that the flow of key has a place, which may be another's until now. 0 is that it has none.
 * key, flow and to stay as they are.
 */
__noinline int place_keep(__u32 now)
{
	struct balance *w = balance_work();
	__u32 first, best = 0, number;
	__s32 age, oldest = -1;

	if (!w || !flow_places)
		return 1;
	w->place.src = w->key.src;
	w->place.hook = FLOW_PLACE;
	first = (w->key.sport ^ (__u32)w->key.dport << 16 ^ w->key.dst.word[3] ^ w->key.protocol) *
		0x9e3779b1; /* any odd number: the high bits depend on all */
	first >>= 16;
	for (int i = 0; i < PLACE_WAYS; i++) {
		number = (first + i) % flow_places;
		age = place_age(number, now);
		if (age == PLACE_MINE)
			return 1;
		if (age > oldest) {
			oldest = age;
			best = number;
		}
		if (age == PLACE_FREE)
			break;
	}
	w->place.sport = best;
	return place_take(w, now);
}
