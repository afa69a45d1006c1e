/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Session affinity: which backend a client had last. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "service/backend.h"
#include "service/frontend.h"
#include "service/member.h"

/* Go sets the sizes before a program is loaded. */
#define SERVICE_CLIENTS_MAX 65536

struct affinity_key {
	__u64 group;
	__u64 client; /* the cookie of a network namespace, or affinity_client of an address */
};

struct affinity {
	__u64 used; /* nanoseconds since boot */
	struct addr addr;
	__be16 port;
	__u16 flags; /* of the backend */
	__u8 pad[4];
};

/* Clients in the cluster. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_CLIENTS_MAX);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} service_clients SEC(".maps");

/* Clients outside the cluster. However many there are, they evict none of the cluster. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_CLIENTS_MAX);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} service_outside SEC(".maps");

/* Returns the number of a client by its address. No cookie of a namespace has the highest bit. */
static __always_inline __u64 affinity_client(const struct addr *a)
{
	__u64 high = (__u64)a->word[0] << 32 | a->word[1],
	      low = (__u64)a->word[2] << 32 | a->word[3];

	return (high * 31 ^ low) | 1ULL << 63;
}

/*
 * Sets to to the backend that the client had. outside is not 0 for a client outside the cluster.
 * Reports whether the client has to get that backend again: the timeout of f has not passed and the
 * backend is eligible.
 */
static __always_inline int affinity_lookup(
	const struct frontend *f, const struct affinity_key *key, int outside, struct backend *to)
{
	struct affinity *c = outside ? bpf_map_lookup_elem(&service_outside, key)
				     : bpf_map_lookup_elem(&service_clients, key);

	/* Signed: the entry may belong to a later client by now. */
	if (!c || (__s64)(bpf_ktime_get_boot_ns() - c->used) > (__s64)(f->affinity * 1000000000ULL))
		return 0;

	to->addr = c->addr;
	to->port = c->port;
	to->flags = c->flags;
	to->pad = 0;

	return member_find(f->first, f->first + f->count, &to->addr, to->port);
}

/*
 * Remembers which backend of f a client got, if f has session affinity and a backend. It is not
 * inlined, so that the entry takes no stack of its callers. The verifier needs the comparisons with
 * NULL.
 */
__noinline int affinity_remember(
	const struct frontend *f, __u64 client, int outside, const struct backend *to)
{
	struct affinity_key key = {.client = client};
	struct affinity c = {};

	if (!f || !to || !f->affinity || !f->count)
		return 0;

	key.group = f->group;
	c.used = bpf_ktime_get_boot_ns();
	c.addr = to->addr;
	c.port = to->port;
	c.flags = to->flags;

	if (outside)
		bpf_map_update_elem(&service_outside, &key, &c, BPF_ANY);
	else
		bpf_map_update_elem(&service_clients, &key, &c, BPF_ANY);
	return 0;
}
