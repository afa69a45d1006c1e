/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The backends of services: an array, of which each frontend has a part. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "service/frontend.h"

/* Go sets the size before a program is loaded. */
#define SERVICE_SLOTS_MAX 4096

/* Flag of a backend: it is on this node. */
#define BACKEND_LOCAL 1

struct backend {
	struct addr addr;
	__be16 port;
	__u16 flags;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICE_SLOTS_MAX);
	__type(key, __u32);
	__type(value, struct backend);
} service_slots SEC(".maps");

/* Sets to to a random backend of f. Returns 0 if f points past the array. */
static __always_inline int backend_pick(const struct frontend *f, struct backend *to)
{
	__u32 at = f->first + (__u32)(((__u64)bpf_get_prandom_u32() * f->count) >> 32);
	struct backend *backend = bpf_map_lookup_elem(&service_slots, &at);

	if (!backend)
		return 0;

	*to = *backend;
	return 1;
}
