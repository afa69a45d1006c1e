/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The flow table: how the packets of a connection to a service are rewritten (NAT).
 *
 * A packet comes in by one link and goes out by another. Its destination is rewritten as it comes
 * in (DNAT), its source as it goes out (SNAT). In between it has the addresses of the client and
 * the backend. The host's routes, rules and conntrack see these, in both directions.
 *
 *	  wire                     host                 wire
 *	client > service  in   client > backend   out   snat:port > backend
 *	service > client  out  backend > client   in    backend > snat:port
 *
 * A hook looks up one key: the packet as it is there. A flow has four entries. Where the client's
 * packets keep their source, the flow has no second one, and the fourth rewrites nothing. It only
 * records that the flow exists.
 *
 *	forward entry        FLOW_IN   client > service     to the backend
 *	SNAT entry           FLOW_OUT  client > backend     from an address and port of this node
 *	egress reply entry   FLOW_OUT  backend > client     from the service
 *	ingress reply entry  FLOW_IN   backend > snat:port  to the client
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

/* Go sets the size before a program is loaded. */
#define SERVICE_FLOWS_MAX 524288

/* The hook whose packets an entry rewrites. */
enum flow_hook {
	FLOW_IN,    /* tc ingress: the destination changes */
	FLOW_OUT,   /* tc egress: the source changes */
	FLOW_QUOTA, /* no packet's; see quota.h */
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

/* Flags of an entry. */
#define FLOW_FORWARD	 1   /* forward entry */
#define FLOW_SNAT	 2   /* the source becomes this node's own; see node_addr.h */
#define FLOW_CLIENT_FIN	 4   /* the client sent FIN */
#define FLOW_RST	 8   /* either end sent RST */
#define FLOW_CLIENT_SENT 16  /* the client sent more than the SYN */
#define FLOW_REPLIED	 32  /* the backend replied */
#define FLOW_SUSPECT	 64  /* its ends may have opened another connection, without the service */
#define FLOW_BACKEND_FIN 128 /* the backend sent FIN */
#define FLOW_HOST_ROUTED 256 /* of an external client, past netfilter both ways; see route.h */

/* How a packet is rewritten. */
struct flow {
	struct addr addr; /* the new source or destination */
	__be16 port;
	__u16 flags;
	__u32 used; /* seconds; see flow_now of conntrack.h */
	/* Of a reply entry: the pod's link that the replies come by. The source passed the reverse
	 * path filter there. An address stays with a pod for as long as the link exists. */
	__u64 link;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_FLOWS_MAX);
	__type(key, struct flow_key);
	__type(value, struct flow);
} service_flows SEC(".maps");

/* Returns the entry of the key, or NULL. */
static __always_inline struct flow *flow_lookup(const struct flow_key *key)
{
	return bpf_map_lookup_elem(&service_flows, key);
}

/* Inserts an entry. Returns 0, or an error if the key has one. */
static __always_inline long flow_insert(const struct flow_key *key, const struct flow *f)
{
	return bpf_map_update_elem(&service_flows, key, f, BPF_NOEXIST);
}

/* Inserts or replaces an entry. Returns 0 or an error. */
static __always_inline long flow_replace(const struct flow_key *key, const struct flow *f)
{
	return bpf_map_update_elem(&service_flows, key, f, BPF_ANY);
}

/* Deletes the entry of the key. Returns 0, or an error if there is none. */
static __always_inline long flow_delete(const struct flow_key *key)
{
	return bpf_map_delete_elem(&service_flows, key);
}
