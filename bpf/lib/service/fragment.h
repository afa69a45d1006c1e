/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fragments of UDP datagrams. Only the first one has ports. A hook that rewrites it remembers the
 * ports, and the others of the datagram are rewritten by the same flow. A fragment that overtakes
 * the first has no ports: programs at tc cannot hold packets back.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/l4.h"
#include "packet/packet.h"
#include "service/work.h"

/* How many datagrams are in the map at most. The reassembly timeout is 30 s (IPv4), 60 s (IPv6). */
#define SERVICE_FRAGMENTS_MAX 8192

/* After how many seconds another datagram may have the same identification. */
#define TIMEOUT_FRAGMENT 30

/* What w->in.fragment is. */
#define FRAGMENT_NONE  0
#define FRAGMENT_FIRST 1
#define FRAGMENT_LATER 2

/* The ports of a datagram, as they are at the hook. */
struct fragment {
	struct ports ports;
	__u32 used; /* seconds; see flow_now of conntrack.h */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_FRAGMENTS_MAX);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} service_fragments SEC(".maps");

/* The fragment header of IPv6 (RFC 8200 section 4.5). */
struct fragment_header {
	__u8 next_header;
	__u8 reserved;
	__be16 offset; /* and flags in the lowest three bits */
	__be32 id;
};

/* Sets w->scratch.fragment_key to the datagram of the fragment w->in. */
static __always_inline void fragment_key_set(struct work *w, __u32 hook)
{
	w->scratch.fragment_key.src = w->in.packet.src;
	w->scratch.fragment_key.dst = w->in.packet.dst;
	w->scratch.fragment_key.id = w->in.fragment_id;
	w->scratch.fragment_key.hook = hook;
}

/*
 * Parses the fragment w->in, whose IP header is at network. Sets w->in.fragment. Returns 1 if it is
 * of a UDP datagram; then its protocol is UDP and its payload is behind all IP headers.
 */
__noinline int fragment_parse(struct __sk_buff *skb, __u32 network)
{
	struct work *w = work_get();
	struct fragment_header h6;
	struct ipv4_header h4;
	int later;

	if (!w)
		return 0;

	if (w->in.packet.family == 4) {
		if (bpf_skb_load_bytes(skb, network, &h4, sizeof(h4)) || h4.protocol != PROTO_UDP)
			return 0;
		w->in.fragment_id = h4.id;
		later = (h4.frag & bpf_htons(0x1fff)) != 0;
	} else {
		if (bpf_skb_load_bytes(skb, w->in.packet.payload, &h6, sizeof(h6)) ||
			h6.next_header != PROTO_UDP)
			return 0;
		w->in.packet.payload += sizeof(h6);
		w->in.fragment_id = h6.id;
		later = (h6.offset & bpf_htons(0xfff8)) != 0;
	}

	w->in.packet.protocol = PROTO_UDP;
	w->in.fragment = later ? FRAGMENT_LATER : FRAGMENT_FIRST;
	return 1;
}

/* Sets ports to the ports of the datagram of the fragment w->in. Returns 0 if they are unknown. */
static __always_inline int fragment_ports(
	struct work *w, __u32 hook, __u32 now, struct ports *ports)
{
	struct fragment *f;

	fragment_key_set(w, hook);
	f = bpf_map_lookup_elem(&service_fragments, &w->scratch.fragment_key);
	if (!f || (__s32)(now - f->used) > TIMEOUT_FRAGMENT)
		return 0;

	*ports = f->ports;
	return 1;
}

/* Remembers the ports of the datagram whose first fragment is w->in. */
__noinline int fragment_remember(__u32 hook, __u32 now)
{
	struct work *w = work_get();
	struct fragment f = {.used = now};

	if (!w)
		return 0;

	f.ports.src = w->in.key.sport;
	f.ports.dst = w->in.key.dport;
	fragment_key_set(w, hook);
	return bpf_map_update_elem(&service_fragments, &w->scratch.fragment_key, &f, BPF_ANY);
}
