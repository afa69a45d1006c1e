/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A Bloom filter of addresses, with one hash function. Several addresses share a bit, so the filter
 * may report an address that was not added. It never misses one that was. Bits are never cleared.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

#define BLOOM_WORDS 1024 /* of 64 bits */

/*
 * Addresses that have had a flow. Most pods never have one, since their sockets are translated. The
 * filter saves the look-up in the flow table, which is large and seldom in a cache. Go sets all
 * bits if it cannot list the addresses that have had a flow.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BLOOM_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} service_known SEC(".maps");

/* Returns the bit of an address: a multiplicative hash of it. */
static __always_inline __u32 bloom_bit(const struct addr *a)
{
	__u32 h = a->word[0] ^ a->word[1] * 31 ^ a->word[2] * 961 ^ a->word[3];

	return h * 0x9e3779b1 >> 16; /* any odd number: the high bits depend on all */
}

/* Reports whether the address may have had a flow. */
static __always_inline int bloom_has_flow(const struct addr *a)
{
	__u32 bit = bloom_bit(a), word = bit / 64;
	__u64 *bits = bpf_map_lookup_elem(&service_known, &word);

	return !bits || *bits & 1ULL << bit % 64;
}

/* Adds the address to the Bloom filter of flows. Call before inserting the flow. */
static __always_inline void bloom_add_flow(const struct addr *a)
{
	__u32 bit = bloom_bit(a), word = bit / 64;
	__u64 *bits = bpf_map_lookup_elem(&service_known, &word);

	if (bits && !(*bits & 1ULL << bit % 64))
		__sync_fetch_and_or(bits, 1ULL << bit % 64);
}
