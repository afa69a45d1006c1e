/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The backends of services: slots, of which each frontend has a run. Slots are in chunks, which Go
 * adds when a run needs them and writes through mappings. docs/design/0044-slots-in-chunks.md has
 * the reasons.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "service/frontend.h"

/* Slot n is entry n % 2^SLOT_CHUNK_BITS of chunk n >> SLOT_CHUNK_BITS. */
#define SLOT_CHUNK_BITS 16

/* Go sets the size before a program is loaded. */
#define SERVICE_CHUNKS_MAX 64

/* Flag of a backend: it is on this node. */
#define BACKEND_LOCAL 1

struct backend {
	struct addr addr;
	__be16 port;
	__u16 flags;
	__u32 pad;
};

/* A table with fewer slots has one smaller chunk. */
struct slot_chunk {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << SLOT_CHUNK_BITS);
	/* Sizes, since clang leaves the type of a nested value out of BTF. */
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct backend));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SERVICE_CHUNKS_MAX);
	__type(key, __u32);
	__array(values, struct slot_chunk);
} service_slots SEC(".maps");

/* Returns a slot, or NULL if it is past the slots. */
static __always_inline struct backend *slot_lookup(__u32 at)
{
	__u32 number = at >> SLOT_CHUNK_BITS;
	void *chunk = bpf_map_lookup_elem(&service_slots, &number);

	if (!chunk)
		return chunk;

	at &= (1 << SLOT_CHUNK_BITS) - 1;
	return bpf_map_lookup_elem(chunk, &at);
}

/* Sets to to a random backend of f. Returns 0 if f points past the slots. */
static __always_inline int backend_pick(const struct frontend *f, struct backend *to)
{
	__u64 random = bpf_get_prandom_u32();
	struct backend *backend = slot_lookup(f->first + (__u32)((random * f->count) >> 32));

	if (!backend)
		return 0;

	*to = *backend;
	return 1;
}
