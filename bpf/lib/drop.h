/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Dropping a packet and counting why. */
#pragma once

#include "kernel.h"
#include "reasons.h"

/* More than there are reasons, so that a new reason does not change the map. */
#define DROPS_MAX 256

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROPS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} drops SEC(".maps");

/* Counts a packet under reason; the program returns what this returns. */
static __always_inline int drop(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&drops, &reason);

	if (count)
		(*count)++; /* one CPU's own; programs at tc do not preempt each other there */
	return VERDICT_DROP;
}
