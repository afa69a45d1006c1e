/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Drops a packet and counts the reason. */
#pragma once

#include "kernel.h"
#include "packet/reasons.h"

/* More than there are reasons, so that a new reason does not change the map. */
#define DROPS_MAX 256

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROPS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} drops SEC(".maps");

/* Counts a drop for the reason and returns the verdict, which the program returns. */
static __always_inline int drop(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&drops, &reason);

	/* Each CPU has its own count, and programs at tc do not preempt each other there. */
	if (count)
		(*count)++;

	return VERDICT_DROP;
}
