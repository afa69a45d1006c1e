/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host ports: netfilter translates (DNAT) what a pod sends to a port of this host to another pod of
 * the node. Then netfilter has to see the other pod's replies. So these two pods leave the fast
 * path, for the packets of that port of the pod.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/l4.h"
#include "service/conntrack.h"
#include "service/count.h"
#include "service/work.h"

#define HOST_PORTS_MAX	 16384
#define DNAT_CLIENTS_MAX 8192

/* After how many seconds without a packet of the client to the host port it may return. */
#define DNAT_TIMEOUT_UDP 3600
#define DNAT_TIMEOUT_TCP TIMEOUT_TCP

/* A host port. The address is zero if each address of this host has it. */
struct host_port {
	struct addr addr;
	__be16 port;
	__u8 protocol;
	__u8 family; /* 4 or 6 */
};

/* The pod's end behind a host port. */
struct host_port_pod {
	struct addr addr;
	__be16 port;
	__u16 pad;
};

/* Go writes what the plugin's records have. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, HOST_PORTS_MAX);
	__type(key, struct host_port);
	__type(value, struct host_port_pod);
} service_ports SEC(".maps");

/* A pod that used a host port, and the pod's end behind it. */
struct dnat_client {
	struct addr client;
	struct addr pod;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

/* The value is the time of the client's last packet to the host port; see flow_now. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DNAT_CLIENTS_MAX);
	__type(key, struct dnat_client);
	__type(value, __u32);
} service_dnat SEC(".maps");

/* A bit for each port of a pod that service_dnat ever had, of both protocols. It saves the look-up
 * for all other ports. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536 / 64);
	__type(key, __u32);
	__type(value, __u64);
} service_dnatbits SEC(".maps");

/* Returns the word of service_dnatbits for a port, and its bit in bit. */
static __always_inline __u64 *dnat_word(__be16 port, __u64 *bit)
{
	__u32 word = bpf_ntohs(port) / 64;

	*bit = 1ULL << bpf_ntohs(port) % 64;
	return bpf_map_lookup_elem(&service_dnatbits, &word);
}

/*
 * Records that netfilter translates the packet w->in, which is for dst and dport of this host, if
 * that is a host port. Returns 0, or an error if there is no room.
 */
static __noinline long host_port_used(const struct addr *dst, __be16 dport)
{
	struct host_port at = {.port = dport};
	struct dnat_client key = {};
	struct host_port_pod *pod;
	struct work *w = work_get();
	__u32 *used, now = flow_now();
	__u64 bit, *bits;
	long err;

	if (!w || !dst)
		return 0;

	at.protocol = w->in.key.protocol;
	at.family = w->in.packet.family;
	pod = bpf_map_lookup_elem(&service_ports, &at);
	if (!pod) {
		at.addr = *dst;
		pod = bpf_map_lookup_elem(&service_ports, &at);
	}
	if (!pod)
		return 0;

	key.client = w->in.key.src;
	key.pod = pod->addr;
	key.port = pod->port;
	key.protocol = at.protocol;
	used = bpf_map_lookup_elem(&service_dnat, &key);
	if (used) {
		*used = now;
		return 0;
	}

	/* The bit comes first: who sees no bit looks for no entry. */
	bits = dnat_word(key.port, &bit);
	if (bits && !(*bits & bit))
		__sync_fetch_and_or(bits, bit);
	err = bpf_map_update_elem(&service_dnat, &key, &now, BPF_ANY);
	if (!err)
		service_count(COUNT_PACKET_HOST_PORT);
	return err;
}

/* Reports whether the client used a host port of the pod's end not long ago. */
static __noinline int dnat_has(const struct dnat_client *key)
{
	__u32 *used = bpf_map_lookup_elem(&service_dnat, key);

	return used && (__s32)(flow_now() - *used) <=
			       (key->protocol == PROTO_UDP ? DNAT_TIMEOUT_UDP : DNAT_TIMEOUT_TCP);
}

/* Reports whether netfilter has to see the packet w->in of two pods, in either direction. */
static __always_inline int dnat_has_packet(const struct work *w)
{
	struct dnat_client key = {.protocol = w->in.key.protocol};
	__u64 bit, *bits = dnat_word(w->in.key.sport, &bit);

	if (!bits || *bits & bit) {
		key.client = w->in.key.dst;
		key.pod = w->in.key.src;
		key.port = w->in.key.sport;
		if (dnat_has(&key))
			return 1;
	}

	bits = dnat_word(w->in.key.dport, &bit);
	if (bits && !(*bits & bit))
		return 0;
	key.client = w->in.key.src;
	key.pod = w->in.key.dst;
	key.port = w->in.key.dport;
	return dnat_has(&key);
}
