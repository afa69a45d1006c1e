/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sets of source ranges: which external clients a service admits (loadBalancerSourceRanges). */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

/* Go sets the size before a program is loaded. */
#define SERVICE_SOURCES_MAX 65536

struct source_range_key {
	__u32 prefixlen; /* bits of set and addr */
	__u32 set[2];	 /* network order */
	struct addr addr;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SERVICE_SOURCES_MAX);
	__type(key, struct source_range_key);
	__type(value, __u32);
} service_sources SEC(".maps");

/* Reports whether a set of source ranges admits the client. Set 0 admits every client. */
static __always_inline int source_admitted(__u64 set, const struct addr *client)
{
	struct source_range_key key = {
		.prefixlen = 8 * (sizeof(key.set) + sizeof(key.addr)), .addr = *client};

	if (!set)
		return 1;

	key.set[0] = bpf_htonl((__u32)(set >> 32));
	key.set[1] = bpf_htonl((__u32)set);
	return bpf_map_lookup_elem(&service_sources, &key) != 0;
}
