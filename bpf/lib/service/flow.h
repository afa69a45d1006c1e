/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The flow tables: how the packets of a connection to a service are rewritten (NAT).
 *
 * A packet comes in by one link and goes out by another. Its destination is rewritten as it comes
 * in (DNAT), its source as it goes out (SNAT). In between it has the addresses of the client and
 * the backend. The host's routes, rules and conntrack see these, in both directions.
 *
 *	  wire                     host                 wire
 *	client > service  in   client > backend   out   snat:port > backend
 *	service > client  out  backend > client   in    backend > snat:port
 *
 * A hook looks up the packet as it is there. A flow has four entries. Where the client's packets
 * keep their source, it has two: the forward entry and one reply entry, which both hooks share
 * (FLOW_SHARED). At ingress that one rewrites nothing. It only records that the flow exists.
 *
 *	forward entry        FLOW_IN   client > service     to the backend
 *	SNAT entry           FLOW_OUT  client > backend     from an address and port of this node
 *	egress reply entry   FLOW_OUT  backend > client     from the service
 *	ingress reply entry  FLOW_IN   backend > snat:port  to the client
 *
 * There are three tables, so that neither SYNs nor datagrams evict an established connection:
 * service_opening has what a SYN stores, service_tcp what the client's first segment after the
 * SYN-ACK copies there, service_udp the flows of UDP. A copied entry stays in service_opening with
 * FLOW_COPIED, so that another processor finds the flow at any moment. The copy counts, and an
 * entry is deleted from both tables. If service_tcp evicts the copy, the client's next segment
 * finds the entry in service_opening and copies it again.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

/* Go sets the sizes before a program is loaded. */
#define SERVICE_TCP_MAX	    262144
#define SERVICE_OPENING_MAX 65536
#define SERVICE_UDP_MAX	    131072

/* The hook whose packets an entry rewrites. */
enum flow_hook {
	FLOW_IN,  /* tc ingress: the destination changes */
	FLOW_OUT, /* tc egress: the source changes */
};

struct flow_key {
	struct addr src;
	struct addr dst;
	__be16 sport;
	__be16 dport;
	__u8 protocol;
	__u8 hook;
	__u8 pad[2];
};

/* Flags of an entry. Those of FLOW_FIXED never change. */
#define FLOW_FORWARD	 1    /* forward entry */
#define FLOW_SNAT	 2    /* the source becomes this node's own; see node_addr.h */
#define FLOW_CLIENT_FIN	 4    /* the client sent FIN */
#define FLOW_RST	 8    /* either end sent RST */
#define FLOW_CLIENT_SENT 16   /* of TCP: the client went on after the SYN-ACK; in service_tcp */
#define FLOW_REPLIED	 32   /* the backend replied */
#define FLOW_SUSPECT	 64   /* its ends may have opened another connection, without the service */
#define FLOW_BACKEND_FIN 128  /* the backend sent FIN */
#define FLOW_HOST_ROUTED 256  /* of an external client, past netfilter both ways; see route.h */
#define FLOW_COPIED	 512  /* in service_opening: it was copied to service_tcp at least once */
#define FLOW_SHARED	 1024 /* egress reply entry of a flow without SNAT: holds at ingress too */

#define FLOW_FIXED (FLOW_FORWARD | FLOW_SNAT | FLOW_HOST_ROUTED | FLOW_SHARED)

/* How a packet is rewritten. */
struct flow {
	struct addr addr; /* the new source or destination */
	__be16 port;
	__u16 pad;
	__u32 tag; /* see flow_tag */
	__u32 flags;
	__u32 used; /* seconds; see flow_now of conntrack.h */
	union {
		/* Of a reply entry: the pod's link that the replies come by. The source passed the
		 * reverse path filter there. An address stays with a pod for as long as the link
		 * exists. */
		__u32 link;
		__u32 member; /* of a forward entry: see balance_member of balance.h */
	};
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_TCP_MAX);
	__type(key, struct flow_key);
	__type(value, struct flow);
} service_tcp SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_OPENING_MAX);
	__type(key, struct flow_key);
	__type(value, struct flow);
} service_opening SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_UDP_MAX);
	__type(key, struct flow_key);
	__type(value, struct flow);
} service_udp SEC(".maps");

/* Adds a pair of words to a tag: a term of NH (RFC 4418 section 5.2.2), with any numbers as key. */
#define TAG_PAIR(a, b, ka, kb) ((__u64)((a) + (ka)) * (__u32)((b) + (kb)))

/*
 * Returns the tag of an entry: a hash (NH) of its key and of what never changes in it.
 *
 * An LRU map may give the memory of an entry to another key while a program holds a pointer to it.
 * So a copy may be of another entry, or of parts of two. It is of the key if it has the key's tag.
 */
static __always_inline __u32 flow_tag(const struct flow_key *key, const struct flow *f)
{
	__u32 ports = key->sport | (__u32)key->dport << 16;
	__u32 rest = key->protocol | key->hook << 8 | (__u32)f->port << 16;
	__u64 h = TAG_PAIR(key->src.word[0], key->src.word[1], 0x9e3779b1, 0x85ebca77) +
		  TAG_PAIR(key->src.word[2], key->src.word[3], 0xc2b2ae3d, 0x27d4eb2f) +
		  TAG_PAIR(key->dst.word[0], key->dst.word[1], 0x165667b1, 0xd6e8feb8) +
		  TAG_PAIR(key->dst.word[2], key->dst.word[3], 0xff51afd7, 0xed558ccd) +
		  TAG_PAIR(f->addr.word[0], f->addr.word[1], 0xc4ceb9fe, 0x1a85ec53) +
		  TAG_PAIR(f->addr.word[2], f->addr.word[3], 0x94d049bb, 0x133111eb) +
		  TAG_PAIR(ports, rest, 0xbf58476d, 0x1ce4e5b9) +
		  (__u64)(f->flags & FLOW_FIXED) * 0xd1b54a35;

	return h ^ h >> 32;
}

/* Reports whether the key is of an established connection. */
static __always_inline int flow_in_tcp(const struct flow_key *key)
{
	return key->protocol != PROTO_UDP && bpf_map_lookup_elem(&service_tcp, key);
}

/*
 * Returns the entry of the key, or NULL. service_tcp comes first, also for a SYN: with a stale
 * entry of service_opening, a forged SYN could end an established connection.
 */
static __always_inline struct flow *flow_lookup(const struct flow_key *key)
{
	struct flow *f;

	if (key->protocol == PROTO_UDP)
		return bpf_map_lookup_elem(&service_udp, key);

	f = bpf_map_lookup_elem(&service_tcp, key);
	return f ? f : bpf_map_lookup_elem(&service_opening, key);
}

/* Copies the entry f of the key. Returns f, or NULL if it is not of the key any more. */
static __always_inline struct flow *flow_copy(
	const struct flow_key *key, struct flow *f, struct flow *copy)
{
	if (!f)
		return 0;

	*copy = *f;
	barrier(); /* what is checked is the copy */
	return copy->tag == flow_tag(key, copy) ? f : 0;
}

/* Copies the entry of the key. Returns the entry, or NULL if there is none. */
static __noinline struct flow *flow_read(const struct flow_key *key, struct flow *copy)
{
	return flow_copy(key, flow_lookup(key), copy);
}

/* Stores an entry in the table of its flow, as flags of the system call. Sets its tag. */
static __noinline long flow_put(const struct flow_key *key, struct flow *f, __u64 flags)
{
	f->tag = flow_tag(key, f);
	if (key->protocol == PROTO_UDP)
		return bpf_map_update_elem(&service_udp, key, f, flags);
	if (f->flags & FLOW_CLIENT_SENT)
		return bpf_map_update_elem(&service_tcp, key, f, flags);
	return bpf_map_update_elem(&service_opening, key, f, flags);
}

/* Inserts an entry. Returns 0, or an error if the table of its flow has the key. */
static __always_inline long flow_insert(const struct flow_key *key, struct flow *f)
{
	return flow_put(key, f, BPF_NOEXIST);
}

/* Stores the entry of a new flow in place of one that the key may have. Returns 0 or an error. */
static __always_inline long flow_replace(const struct flow_key *key, struct flow *f)
{
	if (flow_in_tcp(key))
		bpf_map_delete_elem(&service_tcp, key);
	return flow_put(key, f, BPF_ANY);
}

/*
 * Adds flags to the entry f of the key. Other processors may add others at the same time, or copy
 * the entry to service_tcp. The one that comes second adds these flags to the copy.
 */
static __noinline int flow_or_flags(const struct flow_key *key, struct flow *f, __u32 flags)
{
	struct flow *copy;

	if (!(__sync_fetch_and_or(&f->flags, flags) & FLOW_COPIED))
		return 0;

	copy = bpf_map_lookup_elem(&service_tcp, key);
	if (copy && copy->tag == f->tag)
		__sync_fetch_and_or(&copy->flags, flags);
	return 0;
}

/* Adds flags to the entry f of the key, if it lacks any. */
static __always_inline void flow_add_flags(const struct flow_key *key, struct flow *f, __u32 flags)
{
	if (flags & ~f->flags)
		flow_or_flags(key, f, flags);
}

/*
 * Copies the entry f of the key from service_opening to service_tcp with more flags, unless another
 * processor did. copy is a copy of f, which it changes. Returns 0 if service_tcp has no such entry
 * then.
 */
static __noinline int flow_establish(
	const struct flow_key *key, struct flow *f, struct flow *copy, __u32 flags)
{
	struct flow *have;
	__u32 now;
	long err;

	copy->flags = (copy->flags & ~FLOW_COPIED) | FLOW_CLIENT_SENT | flags;
	err = bpf_map_update_elem(&service_tcp, key, copy, BPF_NOEXIST);

	/* What was added before FLOW_COPIED is added here; see flow_add_flags. */
	now = __sync_fetch_and_or(&f->flags, FLOW_COPIED) & ~FLOW_COPIED;
	if (f->tag != copy->tag)
		now = 0; /* its memory is of another key by now */
	if (!err && !(now & ~copy->flags))
		return 1;

	have = bpf_map_lookup_elem(&service_tcp, key);
	if (!have || have->tag != copy->tag)
		return 0;
	copy->flags |= now;
	__sync_fetch_and_or(&have->flags, copy->flags);
	have->used = copy->used;
	return 1;
}

/*
 * Makes the entry of the key one of service_tcp, if it has the flags need. Copies it to copy.
 * Returns 0 if there is no such entry. service_tcp may have evicted an earlier copy.
 */
static __noinline int flow_open(
	const struct flow_key *key, struct flow *copy, __u32 need, __u32 now)
{
	struct flow *f = flow_copy(key, bpf_map_lookup_elem(&service_opening, key), copy);

	if (!f)
		return flow_copy(key, bpf_map_lookup_elem(&service_tcp, key), copy) != 0;
	/* A RST does not show that the client exists: it goes to any address that a SYN names. */
	if ((copy->flags & need) != need || copy->flags & FLOW_RST)
		return 0;

	copy->used = now;
	return flow_establish(key, f, copy, 0);
}

/*
 * Deletes the entry of the key. The one in service_opening goes first, so that no other processor
 * copies it to service_tcp in between.
 */
static __always_inline void flow_delete(const struct flow_key *key)
{
	if (key->protocol == PROTO_UDP) {
		bpf_map_delete_elem(&service_udp, key);
		return;
	}

	bpf_map_delete_elem(&service_opening, key);
	bpf_map_delete_elem(&service_tcp, key);
}
