/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The addresses of all nodes of the cluster. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

#define NODES_MAX 65536

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NODES_MAX);
	__type(key, struct addr);
	__type(value, __u8);
} nodes SEC(".maps");

/* Reports whether the address belongs to a node. */
static __always_inline int is_node(const struct addr *a)
{
	return bpf_map_lookup_elem(&nodes, a) != 0;
}
