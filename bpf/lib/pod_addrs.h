/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The addresses of the pod behind a link; the CNI plugin writes them. */
#pragma once

#include "kernel.h"
#include "addr.h"

#define POD_ADDRS_MAX 16384

#define POD_HAS_V4 1
#define POD_HAS_V6 2

struct pod_addrs {
	__u32 flags;
	__be32 v4;
	struct addr v6;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, POD_ADDRS_MAX);
	__type(key, __u32); /* index of the link */
	__type(value, struct pod_addrs);
} pod_addrs SEC(".maps");

static __always_inline const struct pod_addrs *pod_addrs_of(__u32 ifindex)
{
	return bpf_map_lookup_elem(&pod_addrs, &ifindex);
}
