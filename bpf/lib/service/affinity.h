/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Session affinity: which backend a client had last. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "service/backend.h"
#include "service/frontend.h"
#include "service/member.h"

/* Go sets the size before a program is loaded. */
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

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_CLIENTS_MAX);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} service_clients SEC(".maps");

/* Returns the number of a client by its address. No cookie of a namespace has the highest bit. */
static __always_inline __u64 affinity_client(const struct addr *a)
{
	__u64 high = (__u64)a->word[0] << 32 | a->word[1],
	      low = (__u64)a->word[2] << 32 | a->word[3];

	return (high * 31 ^ low) | 1ULL << 63;
}

/*
 * Sets to to the backend that the client had. Reports whether the client has to get it again: the
 * timeout of f has not passed and the backend is eligible.
 */
static __always_inline int affinity_lookup(
	const struct frontend *f, const struct affinity_key *key, struct backend *to)
{
	struct affinity *c = bpf_map_lookup_elem(&service_clients, key);

	/* Signed: the entry may belong to a later client by now. */
	if (!c || (__s64)(bpf_ktime_get_boot_ns() - c->used) > (__s64)(f->affinity * 1000000000ULL))
		return 0;

	to->addr = c->addr;
	to->port = c->port;
	to->flags = c->flags;

	return member_state(f->group, &to->addr, to->port) == MEMBER_ELIGIBLE;
}

/* Remembers which backend of f a client got, if f has session affinity. */
static __always_inline void affinity_remember(
	const struct frontend *f, __u64 client, const struct backend *to)
{
	struct affinity_key key = {.group = f->group, .client = client};
	struct affinity c = {.used = bpf_ktime_get_boot_ns(),
		.addr = to->addr,
		.port = to->port,
		.flags = to->flags};

	if (f->affinity)
		bpf_map_update_elem(&service_clients, &key, &c, BPF_ANY);
}
