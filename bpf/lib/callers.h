/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Who inside has had a flow to which address outside the ranges, by the link that he is behind. The
 * table of flows forgets, this does not: whoever goes on with a flow that was forgotten would send
 * in clear were the address open. So Go keeps it closed while one of these links is there.
 */
#pragma once

#include "kernel.h"
#include "balance.h"
#include "ranges.h"

#define SERVICE_CALLERS_MAX 262144

struct service_caller {
	struct addr addr;
	__u32 link; /* index; 0 is one that Go does not know */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SERVICE_CALLERS_MAX);
	__type(key, struct service_caller);
	__type(value, __u8);
} service_callers SEC(".maps");

/* Sees that who is behind the link is known to call where key goes. 0 is that there is no room. */
__noinline int caller_keep(__u32 link)
{
	struct balance *w = balance_work();
	struct service_caller caller;
	__u8 one = 1;

	if (!w)
		return 0;
	if (in_ranges(&w->key.dst))
		return 1; /* which are never open */
	caller.addr = w->key.dst;
	caller.link = link;
	if (bpf_map_lookup_elem(&service_callers, &caller))
		return 1;
	return !bpf_map_update_elem(&service_callers, &caller, &one, BPF_ANY);
}
