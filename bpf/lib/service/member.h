/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The members of a group of backends, for clients that stay with one: UDP flows and session
 * affinity. A member that is not eligible is draining: it keeps its flows and gets no new client.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

/* Go sets the size before a program is loaded. */
#define SERVICE_MEMBERS_MAX 2097152

#define MEMBER_ELIGIBLE 2

struct member_key {
	__u64 group;
	struct addr addr;
	__be16 port;
	__u8 pad[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SERVICE_MEMBERS_MAX);
	__type(key, struct member_key);
	__type(value, __u32);
} service_members SEC(".maps");

/* Returns the state of a backend in the group, or 0 if it is not a member. */
static __always_inline __u32 member_state(__u64 group, const struct addr *addr, __be16 port)
{
	struct member_key key = {.group = group, .addr = *addr, .port = port};
	__u32 *state = bpf_map_lookup_elem(&service_members, &key);

	return state ? *state : 0;
}
