/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The table of services and the choice of a backend; docs/design/0007-service-table.md says why
 * it is read as it is. pkg/service/layout.go has the same layout in Go.
 */
#pragma once

#include "kernel.h"
#include "addr.h"

/* Sizes are set by Go before a program is loaded. */
#define SERVICE_FRONTS_MAX  262144
#define SERVICE_SLOTS_MAX   4096
#define SERVICE_MEMBERS_MAX 2097152
#define SERVICE_CLIENTS_MAX 65536
#define SERVICE_SOURCES_MAX 65536
#define SERVICE_COUNTS_MAX  32

/* How often a choice begins again because the frontend changed meanwhile. */
#define SERVICE_TRIES 8

/* Who looks a frontend up. */
#define SERVICE_INSIDE	0
#define SERVICE_OUTSIDE 1

/* Of a frontend without backends: packets from outside the cluster are dropped, not refused. */
#define SERVICE_FLAG_DROP 1

/* Of a slot: the backend is on this node. */
#define SERVICE_SLOT_LOCAL 1

struct service_front_key {
	struct addr addr;
	__be16 port;
	__u8 protocol;
	__u8 scope;
};

struct service_front {
	__u64 revision; /* of this value alone */
	__u64 group;
	__u64 sources;
	__u32 first;
	__u32 count;
	__u32 affinity; /* seconds, 0 is none */
	__u32 flags;
};

struct service_slot {
	struct addr addr;
	__be16 port;
	__u16 flags;
	__u32 pad;
};

struct service_member_key {
	__u64 group;
	struct addr addr;
	__be16 port;
	__u8 pad[6];
};

#define SERVICE_MEMBER_ELIGIBLE 2

struct service_client_key {
	__u64 group;
	__u64 client; /* the cookie of a network namespace, or service_client_of a packet */
};

struct service_client {
	__u64 used; /* nanoseconds since boot */
	struct addr addr;
	__be16 port;
	__u16 flags; /* of the slot */
	__u8 pad[4];
};

struct service_source_key {
	__u32 prefixlen; /* bits of set and addr */
	__u32 set[2];	 /* network order */
	struct addr addr;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SERVICE_FRONTS_MAX);
	__type(key, struct service_front_key);
	__type(value, struct service_front);
} service_fronts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICE_SLOTS_MAX);
	__type(key, __u32);
	__type(value, struct service_slot);
} service_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SERVICE_MEMBERS_MAX);
	__type(key, struct service_member_key);
	__type(value, __u32);
} service_members SEC(".maps");

/* Which backend a client with affinity had. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_CLIENTS_MAX);
	__type(key, struct service_client_key);
	__type(value, struct service_client);
} service_clients SEC(".maps");

/* Who may come from outside, by the set that a frontend names. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SERVICE_SOURCES_MAX);
	__type(key, struct service_source_key);
	__type(value, __u32);
} service_sources SEC(".maps");

/* What is counted, once for each choice of a backend that was asked for. */
enum service_count {
	COUNT_SOCKET_TCP,
	COUNT_SOCKET_UDP,
	COUNT_SOCKET_REFUSED,
	COUNT_SOCKET_UNSTEADY,
	COUNT_PACKET_TCP,
	COUNT_PACKET_UDP,
	COUNT_PACKET_REFUSED,
	COUNT_PACKET_LOCAL,    /* dropped: the policy is Local and no backend is here */
	COUNT_PACKET_SOURCE,   /* dropped: not in the service's source ranges */
	COUNT_PACKET_UNSTEADY, /* dropped */
	COUNT_PACKET_ADDRESS,  /* dropped: this node has no address to send from */
	COUNT_PACKET_PORT,     /* dropped: no port to send from, no other backend, or no room */
	COUNT_PACKET_MOVED,    /* datagrams that got another backend since theirs is gone */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICE_COUNTS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} service_counts SEC(".maps");

static __always_inline void service_count(__u32 what)
{
	__u64 *count = bpf_map_lookup_elem(&service_counts, &what);

	/* A task at a socket may be preempted here by another of this CPU. */
	if (count)
		__sync_fetch_and_add(count, 1);
}

/* Counts a packet that gets no backend; the program returns what this returns. */
static __always_inline int service_drop(__u32 why)
{
	service_count(why);
	return VERDICT_DROP;
}

enum service_verdict {
	SERVICE_NONE,	 /* no service's address */
	SERVICE_FOUND,	 /* a backend was chosen */
	SERVICE_REFUSED, /* it has none */
	SERVICE_UNSTEADY /* it changed whenever it was looked at */
};

/* 0 is that the backend is no member of the group. */
static __always_inline __u32 service_member(__u64 group, const struct addr *addr, __be16 port)
{
	struct service_member_key key = {.group = group, .addr = *addr, .port = port};
	__u32 *state = bpf_map_lookup_elem(&service_members, &key);

	return state ? *state : 0;
}

/* Whether to has become the backend that the client had. */
static __always_inline int service_remembered(const struct service_front *f,
	const struct service_client_key *key, struct service_slot *to)
{
	struct service_client *c = bpf_map_lookup_elem(&service_clients, key);

	/* Signed: the entry may be another's by now, who used it later. */
	if (!c || (__s64)(bpf_ktime_get_boot_ns() - c->used) > (__s64)(f->affinity * 1000000000ULL))
		return 0;
	to->addr = c->addr;
	to->port = c->port;
	to->flags = c->flags;
	return service_member(f->group, &to->addr, to->port) == SERVICE_MEMBER_ELIGIBLE;
}

/* Remembers which backend of f a client got, if that counts. */
static __always_inline void service_keep(
	const struct service_front *f, __u64 client, const struct service_slot *to)
{
	struct service_client_key key = {.group = f->group, .client = client};
	struct service_client c = {.used = bpf_ktime_get_boot_ns(),
		.addr = to->addr,
		.port = to->port,
		.flags = to->flags};

	if (f->affinity)
		bpf_map_update_elem(&service_clients, &key, &c, BPF_ANY);
}

/* Whether a flow of datagrams may stay with a backend: the address is still served, and by it. */
static __always_inline int service_has(
	const struct service_front_key *key, const struct addr *addr, __be16 port)
{
	struct service_front *front = bpf_map_lookup_elem(&service_fronts, key);

	return front && service_member(front->group, addr, port);
}

static __always_inline int service_pick(const struct service_front *f, struct service_slot *to)
{
	__u32 at = f->first + (__u32)(((__u64)bpf_get_prandom_u32() * f->count) >> 32);
	struct service_slot *slot = bpf_map_lookup_elem(&service_slots, &at);

	if (!slot)
		return 0;
	*to = *slot;
	return 1;
}

/*
 * Whether a source is in the set. The sets of Go have their number in network order; 0 is
 * everybody.
 */
static __always_inline int service_admits(__u64 set, const struct addr *source)
{
	struct service_source_key key = {
		.prefixlen = 8 * (sizeof(key.set) + sizeof(key.addr)), .addr = *source};

	if (!set)
		return 1;
	key.set[0] = bpf_htonl((__u32)(set >> 32));
	key.set[1] = bpf_htonl((__u32)set);
	return bpf_map_lookup_elem(&service_sources, &key) != 0;
}

/*
 * What was read before is read before what follows. An atomic operation that gives the old value
 * orders all that is around it, on every processor (Documentation/atomic_t.txt, ORDERING); one that
 * gives none, as an addition whose result nobody uses, does so on x86 only.
 */
static __always_inline void service_barrier(void)
{
	__u64 order = 0;

	__sync_swap(&order, 1);
}

/*
 * Whether f is all of what is there now. The revision alone says it where f was read whole; it was
 * not if it was written meanwhile.
 */
static __always_inline int service_same(
	const struct service_front *now, const struct service_front *f)
{
	return *(volatile __u64 *)&now->revision == f->revision && now->group == f->group &&
	       now->sources == f->sources && now->first == f->first && now->count == f->count &&
	       now->affinity == f->affinity && now->flags == f->flags;
}

/*
 * Chooses a backend of key for a client, who has it once service_keep was told. f is the frontend
 * that it is of. The frontend is looked up again after the slot was read: another revision says
 * that the slot may be another's by now.
 */
static __always_inline enum service_verdict service_choose(const struct service_front_key *key,
	__u64 client, struct service_front *f, struct service_slot *to)
{
	struct service_client_key who = {.client = client};
	struct service_front *now;

	for (int i = 0; i < SERVICE_TRIES; i++) {
		now = bpf_map_lookup_elem(&service_fronts, key);
		if (!now)
			return SERVICE_NONE;
		f->revision = *(volatile __u64 *)&now->revision;
		f->group = now->group;
		f->sources = now->sources;
		f->first = now->first;
		f->count = now->count;
		f->affinity = now->affinity;
		f->flags = now->flags;
		who.group = f->group;
		if (f->count && !(f->affinity && service_remembered(f, &who, to)) &&
			!service_pick(f, to))
			continue;
		service_barrier();
		now = bpf_map_lookup_elem(&service_fronts, key);
		if (!now || !service_same(now, f))
			continue;
		if (!f->count)
			return SERVICE_REFUSED;
		return SERVICE_FOUND;
	}
	return SERVICE_UNSTEADY;
}
