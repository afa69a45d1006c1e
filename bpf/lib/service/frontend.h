/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The frontends of services: an address, port and protocol, and where the backends are.
 * pkg/service/layout.go has the layout of these maps in Go.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

/* Go sets the size before a program is loaded. */
#define SERVICE_FRONTS_MAX 262144

/*
 * Whose frontend it is: of clients in the cluster, or outside, or of TCP sockets of the node's own
 * network namespace. Programs at links ignore frontends of the last kind: it may be the address of
 * a server, whose packets must arrive.
 */
#define SCOPE_INTERNAL 0
#define SCOPE_EXTERNAL 1
#define SCOPE_HOST     2

/* Flag of a frontend: without a backend, packets of external clients are dropped, not refused. */
#define FRONTEND_DROP 1

struct frontend_key {
	struct addr addr;
	__be16 port;
	__u8 protocol;
	__u8 scope;
};

struct frontend {
	__u64 revision; /* no other value of this or another frontend has it */
	__u64 group;	/* of backends; see affinity.h */
	__u64 sources;	/* the set of source ranges; see source_range.h */
	__u32 first;	/* first slot of the run */
	__u32 count;	/* backends for new flows, sorted */
	__u32 draining; /* backends behind them that keep their flows, sorted */
	__u32 affinity; /* timeout of session affinity in seconds; 0 disables it */
	__u32 flags;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SERVICE_FRONTS_MAX);
	__type(key, struct frontend_key);
	__type(value, struct frontend);
} service_fronts SEC(".maps");

/* Returns the frontend, or NULL if there is none. */
static __always_inline struct frontend *frontend_lookup(const struct frontend_key *key)
{
	return bpf_map_lookup_elem(&service_fronts, key);
}

/*
 * Reports whether the frontend of key has this revision now. A revision is never used again, so a
 * backend that was a member then is one now.
 */
static __always_inline int frontend_is(const struct frontend_key *key, __u64 revision)
{
	struct frontend *now = frontend_lookup(key);

	return now && *(volatile __u64 *)&now->revision == revision;
}

/* Copies the frontend now to f. Go may replace it meanwhile; see frontend_same. */
static __always_inline void frontend_copy(struct frontend *f, const struct frontend *now)
{
	f->revision = *(volatile __u64 *)&now->revision;
	f->group = now->group;
	f->sources = now->sources;
	f->first = now->first;
	f->count = now->count;
	f->draining = now->draining;
	f->affinity = now->affinity;
	f->flags = now->flags;
}

/*
 * Reports whether the copy f is equal to the frontend as it is now. If f was read whole, the
 * revision alone would suffice. Go may have written the frontend while f was read.
 */
static __always_inline int frontend_same(const struct frontend *now, const struct frontend *f)
{
	return *(volatile __u64 *)&now->revision == f->revision && now->group == f->group &&
	       now->sources == f->sources && now->first == f->first && now->count == f->count &&
	       now->draining == f->draining && now->affinity == f->affinity &&
	       now->flags == f->flags;
}
