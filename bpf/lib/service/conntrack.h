/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Connection tracking: the state of a flow, which packets of both ends make, and its timeouts. Each
 * end's flags are kept in the entries that the end's packets meet.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/l4.h"
#include "service/flow.h"
#include "service/work.h"

/* Flags by which a TCP flow is closing, and those that it has once it is established. */
#define FLOW_CLOSING	 (FLOW_CLIENT_FIN | FLOW_BACKEND_FIN | FLOW_RST)
#define FLOW_ESTABLISHED (FLOW_CLIENT_SENT | FLOW_REPLIED)

/* After how many seconds without a packet another flow may have the entry. */
#define TIMEOUT_UDP	  120
#define TIMEOUT_TCP	  86400
#define TIMEOUT_HALF	  3600 /* half closed TCP: one end has more to send; kube-proxy's value */
#define TIMEOUT_CLOSING	  60   /* TCP that is closing, or was never established */
#define TIMEOUT_REUSE	  2    /* closed TCP, for a new flow of the same client */
#define TIMEOUT_REUSE_ANY 10   /* closed TCP, for a new flow of another client */

/* Returns the time in seconds, of CLOCK_MONOTONIC. */
static __always_inline __u32 flow_now(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000000ULL;
}

/* Reports whether a TCP flow with these flags is established and not closing. */
static __always_inline int flow_established(__u32 flags)
{
	return (flags & (FLOW_ESTABLISHED | FLOW_CLOSING)) == FLOW_ESTABLISHED;
}

/* Reports whether a TCP flow with these flags was established and at most one end sent FIN. */
static __always_inline int flow_half_closed(__u32 flags)
{
	const __u32 both = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;

	return (flags & FLOW_ESTABLISHED) == FLOW_ESTABLISHED && !(flags & FLOW_RST) &&
	       (flags & both) != both;
}

/* Reports whether a flow with these flags, last used at used, has timed out. */
static __always_inline int flow_timed_out(__u8 protocol, __u32 flags, __u32 used, __u32 now)
{
	__s32 timeout = TIMEOUT_UDP;

	if (protocol != PROTO_UDP)
		timeout = flow_established(flags)   ? TIMEOUT_TCP
			  : flow_half_closed(flags) ? TIMEOUT_HALF
						    : TIMEOUT_CLOSING;

	/* Signed: another processor may have used it in a later second than now. */
	return (__s32)(now - used) > timeout;
}

/* Reports whether the flow of the entry f has timed out. */
static __always_inline int flow_expired(__u8 protocol, const struct flow *f, __u32 now)
{
	return flow_timed_out(protocol, f->flags, f->used, now);
}

/* Which entry of a packet that comes in is looked up first; see flow_read_in. */
#define READ_OWN_FIRST	  0
#define READ_SHARED_FIRST 1
#define READ_OWN_ALONE	  2

/*
 * Copies the entry of a packet that comes in, whose key has the hook FLOW_IN: its own, or the
 * shared reply entry of its flow, as one that rewrites nothing. Returns the entry, or NULL if there
 * is none or a shared one has timed out. order is one of READ_*.
 */
static __noinline struct flow *flow_read_in(
	struct flow_key *key, struct flow *copy, __u32 now, int order)
{
	struct flow *f = order == READ_SHARED_FIRST ? 0 : flow_read(key, copy);

	if (f || order == READ_OWN_ALONE)
		return f;

	key->hook = FLOW_OUT;
	f = flow_read(key, copy);
	key->hook = FLOW_IN;
	if (f && copy->flags & FLOW_SHARED &&
		!(key->protocol == PROTO_UDP && flow_expired(PROTO_UDP, copy, now))) {
		copy->addr = key->dst;
		copy->port = key->dport;
		return f;
	}

	return order == READ_SHARED_FIRST ? flow_read(key, copy) : 0;
}

/*
 * Reports whether a new flow of the client may take the SNAT port of a TCP flow, if no other port
 * is free. f is the ingress reply entry of that flow. Both ends must have closed it: an end that
 * has not may still send, however long it waits.
 *
 * Late packets of the old flow reach the new client. If the client is the same, that does no harm
 * and a RST is enough. If not, both ends must have sent FIN, since a RST can be
 * forged. And the silence must be longer than TCP waits between retransmissions.
 */
static __always_inline int flow_reusable(const struct flow *f, const struct addr *client, __u32 now)
{
	const __u32 both = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;
	__s32 silent = now - f->used;

	if (same_addr(&f->addr, client) && f->flags & FLOW_RST)
		return silent > TIMEOUT_REUSE;
	if ((f->flags & both) != both)
		return 0;

	return silent > (same_addr(&f->addr, client) ? TIMEOUT_REUSE : TIMEOUT_REUSE_ANY);
}

/*
 * Returns the flags that the packet w->in adds to its flow. from_client: the client sent it.
 * FLOW_CLIENT_SENT is not among them: tc_open adds it.
 */
static __always_inline __u32 packet_flags(const struct work *w, int from_client)
{
	__u32 flags = from_client ? 0 : FLOW_REPLIED;

	if (w->in.key.protocol != PROTO_TCP)
		return 0;

	if (w->in.tcp_flags & TCP_FIN)
		flags |= from_client ? FLOW_CLIENT_FIN : FLOW_BACKEND_FIN;
	if (w->in.tcp_flags & TCP_RST)
		flags |= FLOW_RST;
	return flags;
}

/*
 * Reports whether the client's segment w->in may establish its connection, whose forward entry has
 * these flags: the client goes on after the SYN.
 */
static __always_inline int flow_may_open(const struct work *w, __u32 flags)
{
	return w->in.key.protocol == PROTO_TCP && !(flags & FLOW_CLIENT_SENT) &&
	       !(w->in.tcp_flags & (TCP_SYN | TCP_RST));
}

/*
 * Reports whether this SYN-ACK proves that the backend dropped the tracked connection and accepted
 * a new one between the same endpoints. f is the reply entry of w->in.key. A backend that still has
 * the connection answers a SYN by an ACK alone (RFC 9293 section 3.10.7.4, RFC 5961 section 4).
 */
static __always_inline int accepts_other(const struct work *w, const struct flow *f)
{
	const __u8 both = TCP_SYN | TCP_ACK;

	return f->flags & FLOW_SUSPECT && (w->in.tcp_flags & both) == both;
}
