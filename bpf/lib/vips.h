/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The addresses of services that are in no range: those of balancers, and external ones. */
#pragma once

#include "kernel.h"
#include "addr.h"

#define VIPS_MAX 262144

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, VIPS_MAX);
	__type(key, struct addr);
	__type(value, __u8);
} vips SEC(".maps");

static __always_inline int is_vip(const struct addr *a)
{
	return bpf_map_lookup_elem(&vips, a) != 0;
}
