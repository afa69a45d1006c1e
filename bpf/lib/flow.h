/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The table of flows: what becomes of the packets of a connection to a service.
 *
 * A packet comes in by one link and goes out by another. What comes in gets another destination,
 * what goes out another source, and in between it has the client's address and the backend's: what
 * routes, rules and connection tracking of the host see is that, in both directions.
 *
 *	  wire                     host                 wire
 *	client > service  in   client > backend   out   self:port > backend
 *	service > client  out  backend > client   in    backend > self:port
 *
 * A hook looks one key up, the packet as it is there. Four entries make a flow; where the packet
 * keeps its source there is no second, and the fourth changes nothing but says that there is a
 *flow.
 */
#pragma once

#include "kernel.h"
#include "addr.h"

#define SERVICE_FLOWS_MAX 524288

enum flow_hook {
	FLOW_IN,    /* the destination changes */
	FLOW_OUT,   /* the source changes */
	FLOW_PLACE, /* no packet's; see place.h */
};

struct service_flow_key {
	struct addr src;
	struct addr dst;
	__be16 sport;
	__be16 dport;
	__u8 protocol;
	__u8 hook;
	__u8 pad[2];
};

/* Flags of an entry. */
#define FLOW_FORWARD  1 /* of a client's packets to a service */
#define FLOW_SELF     2 /* the address is this node's own; see service_self */
#define FLOW_FIN      4 /* the client sent FIN */
#define FLOW_RST      8
#define FLOW_SPOKE    16  /* the client sent more than what opens a connection */
#define FLOW_ANSWERED 32  /* the backend sent something */
#define FLOW_DOUBT    64  /* its ends may have begun another connection, without the service */
#define FLOW_FIN_BACK 128 /* the backend sent FIN */
#define FLOW_APART    256 /* of somebody outside, past netfilter from its beginning; see route.h */

/* Flags by which a flow of TCP is closing, and those that are on it when it is open. */
#define FLOW_STATE (FLOW_FIN | FLOW_FIN_BACK | FLOW_RST)
#define FLOW_OPEN  (FLOW_SPOKE | FLOW_ANSWERED)

/* Flags of TCP (RFC 9293 section 3.1). */
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

struct service_flow {
	struct addr addr;
	__be16 port;
	__u16 flags;
	__u32 used; /* seconds; see flow_now */
	/* Of answers: the pod's link that they come by, for which is_own was true: an address is a
	 * pod's for as long as that link is there. */
	__u64 link;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_FLOWS_MAX);
	__type(key, struct service_flow_key);
	__type(value, struct service_flow);
} service_flows SEC(".maps");

/* After how many seconds without a packet an entry may be another flow's. */
#define FLOW_PATIENCE_UDP     120
#define FLOW_PATIENCE_TCP     86400
#define FLOW_PATIENCE_HALF    3600 /* TCP of which one end has more to say, as by kube-proxy */
#define FLOW_PATIENCE_CLOSING 60   /* TCP that is closing, or that was never open */
#define FLOW_PATIENCE_CLOSED  2	   /* TCP that is closed, where the client's ports are short */
#define FLOW_PATIENCE_ENDED   10   /* the same for another client */

static __always_inline __u32 flow_now(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000000ULL;
}

/* Whether a flow of TCP with these flags is open. */
static __always_inline int flow_open(__u16 flags)
{
	return (flags & (FLOW_OPEN | FLOW_STATE)) == FLOW_OPEN;
}

/* Whether a flow of TCP with these flags was open, and is closed at one end. */
static __always_inline int flow_half(__u16 flags)
{
	const __u16 both = FLOW_FIN | FLOW_FIN_BACK;

	return (flags & FLOW_OPEN) == FLOW_OPEN && !(flags & FLOW_RST) && (flags & both) != both;
}

/* Whether a flow with these flags, last used then, is over. */
static __always_inline int flow_ended(__u8 protocol, __u16 flags, __u32 used, __u32 now)
{
	__s32 patience = FLOW_PATIENCE_UDP;

	if (protocol != PROTO_UDP)
		patience = flow_open(flags)   ? FLOW_PATIENCE_TCP
			   : flow_half(flags) ? FLOW_PATIENCE_HALF
					      : FLOW_PATIENCE_CLOSING;
	/* Signed: another processor may have used it in a later second than now. */
	return (__s32)(now - used) > patience;
}

static __always_inline int flow_over(__u8 protocol, const struct service_flow *f, __u32 now)
{
	return flow_ended(protocol, f->flags, f->used, now);
}

static __always_inline int same_addr(const struct addr *a, const struct addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

/*
 * Whether a flow of TCP, of which f is the entry of answers to a port of this node, is closed, so
 * that a new flow of client may have that port where there is no other. One that is closing at one
 * end only has more to say, however long that takes. What its ends still send would come to the new
 * client: to the same address that does no harm. To another it does, so there nothing that anybody
 * may forge counts, and the silence is longer than between what TCP sends again and again.
 */
static __always_inline int flow_closed(
	const struct service_flow *f, const struct addr *client, __u32 now)
{
	const __u16 both = FLOW_FIN | FLOW_FIN_BACK;
	__s32 silent = now - f->used;

	if (same_addr(&f->addr, client) && f->flags & FLOW_RST)
		return silent > FLOW_PATIENCE_CLOSED;
	if ((f->flags & both) != both)
		return 0;
	return silent > (same_addr(&f->addr, client) ? FLOW_PATIENCE_CLOSED : FLOW_PATIENCE_ENDED);
}
