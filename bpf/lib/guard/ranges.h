/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The cluster and service ranges. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

#define RANGES_MAX 1024

struct range_key {
	__u32 prefixlen; /* bits of addr: of IPv4, which is mapped, 96 more than its prefix has */
	struct addr addr;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, RANGES_MAX);
	__type(key, struct range_key);
	__type(value, __u8);
} ranges SEC(".maps");

/* Reports whether the address is in a cluster or service range. */
static __always_inline int in_ranges(const struct addr *a)
{
	struct range_key key = {.prefixlen = 128, .addr = *a};

	return bpf_map_lookup_elem(&ranges, &key) != 0;
}
