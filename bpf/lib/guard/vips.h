/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The service addresses that are in no range: LoadBalancer IPs and external IPs. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

#define VIPS_MAX 262144

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, VIPS_MAX);
	__type(key, struct addr);
	__type(value, __u8);
} vips SEC(".maps");

/* Reports whether the address is a LoadBalancer IP or an external IP of a service. */
static __always_inline int is_vip(const struct addr *a)
{
	return bpf_map_lookup_elem(&vips, a) != 0;
}
