/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What is known of addresses: a bit for each, of which some share one. Bits stay.
 */
#pragma once

#include "kernel.h"
#include "addr.h"

#define KNOWN_WORDS 1024 /* of 64 bits */

/*
 * Addresses that have had a flow, or may have. Most pods never have any, since their sockets are
 * translated, and need not be looked for in the table of flows, which is large and seldom in a
 * cache. Go sets all where it does not know.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KNOWN_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} service_known SEC(".maps");

/*
 * Pods that opened something to an address of this host, which netfilter may have turned to another
 * pod (a host port): it has to see the answers.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KNOWN_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} service_turned SEC(".maps");

static __always_inline __u32 known_bit(const struct addr *a)
{
	__u32 h = a->word[0] ^ a->word[1] * 31 ^ a->word[2] * 961 ^ a->word[3];

	return h * 0x9e3779b1 >> 16; /* any odd number: the high bits depend on all */
}

/* Whether the address has its bit. */
static __always_inline int known(void *map, const struct addr *a)
{
	__u32 bit = known_bit(a), word = bit / 64;
	__u64 *bits = bpf_map_lookup_elem(map, &word);

	return !bits || *bits & 1ULL << bit % 64;
}

/* Sees that it has. To be called before what it tells of. */
static __always_inline void known_add(void *map, const struct addr *a)
{
	__u32 bit = known_bit(a), word = bit / 64;
	__u64 *bits = bpf_map_lookup_elem(map, &word);

	if (bits && !(*bits & 1ULL << bit % 64))
		__sync_fetch_and_or(bits, 1ULL << bit % 64);
}
