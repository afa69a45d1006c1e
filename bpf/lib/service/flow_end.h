/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ends flows: deletes their entries, or suspects them. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "service/conntrack.h"
#include "service/flow.h"
#include "service/flow_make.h"
#include "service/work.h"

/*
 * Ends the flow whose forward key is w->scratch.forward_key. The keys of its other entries follow
 * from the forward entry.
 */
__noinline int flow_end(void)
{
	struct work *w = work_get();
	struct flow *f;
	__u32 flags;

	if (!w)
		return 0;

	f = &w->scratch.found;
	if (!flow_read(&w->scratch.forward_key, f) || !(f->flags & FLOW_FORWARD))
		return 0;

	flags = f->flags;
	entry_key_of_replies(w, &w->scratch.forward_key, &f->addr, f->port, FLOW_OUT);
	flow_delete(&w->scratch.forward_key);

	if (!flow_read(&w->scratch.entry_key, f) || f->port != w->scratch.forward_key.dport ||
		!same_addr(&f->addr, &w->scratch.forward_key.dst))
		return 0; /* the client has a flow to that backend by another service */
	flow_delete(&w->scratch.entry_key);
	if (!(flags & FLOW_SNAT))
		return 0;

	w->scratch.forward_key.dst = w->scratch.entry_key.src;
	w->scratch.forward_key.dport = w->scratch.entry_key.sport;
	w->scratch.forward_key.hook = FLOW_OUT;
	if (!flow_read(&w->scratch.forward_key, f))
		return 0;
	w->scratch.entry_key.dst = f->addr;
	w->scratch.entry_key.dport = f->port;
	flow_delete(&w->scratch.forward_key);

	w->scratch.entry_key.hook = FLOW_IN;
	if (entry_of_client(w, &w->scratch.forward_key.src, w->scratch.forward_key.sport))
		flow_delete(&w->scratch.entry_key);
	return 0;
}

/* Ends the flow whose egress reply entry (key w->scratch.entry_key) is f. */
static __always_inline void flow_end_by_reply(struct work *w, const struct flow *f)
{
	forward_key_set(w, f);
	flow_end();
}

/* Ends the flow of the backend's packet w->in. */
static __always_inline void flow_end_of_backend(struct work *w)
{
	w->scratch.entry_key = w->in.key;
	w->scratch.entry_key.hook = FLOW_OUT;
	if (flow_read(&w->scratch.entry_key, &w->scratch.found))
		flow_end_by_reply(w, &w->scratch.found);

	/* The table may have evicted the forward entry before. */
	w->scratch.entry_key = w->in.key;
	w->scratch.entry_key.hook = FLOW_OUT;
	flow_delete(&w->scratch.entry_key);
	w->scratch.entry_key.hook = FLOW_IN;
	flow_delete(&w->scratch.entry_key);
}

/*
 * Forgets the TCP flow that the ends of w->in.key had by a service. They open a connection without
 * the service, and the reply entry of the old flow would rewrite its replies. If the flow is
 * established, suspects it instead: the backend's reply shows whether the flow has ended.
 */
__noinline int tcp_flow_forget(__u32 now)
{
	struct work *w = work_get();
	struct flow *f;

	if (!w)
		return 0;

	entry_key_of_replies(w, &w->in.key, &w->in.key.dst, w->in.key.dport, FLOW_OUT);
	f = flow_read(&w->scratch.entry_key, &w->scratch.found);
	if (!f || w->scratch.found.flags & FLOW_FORWARD)
		return 0;

	if (!flow_established(w->scratch.found.flags) ||
		flow_expired(w->scratch.entry_key.protocol, &w->scratch.found, now))
		flow_delete(&w->scratch.entry_key);
	else
		flow_add_flags(&w->scratch.entry_key, f, FLOW_SUSPECT);
	return 0;
}

/*
 * Ends the UDP flow that a client in the cluster had by a service to the destination of w->in.key.
 * The client sends there without the service now, and the replies of both would look alike.
 */
__noinline int udp_flow_forget(void)
{
	struct work *w = work_get();
	struct flow *f;

	if (!w)
		return 0;

	entry_key_of_replies(w, &w->in.key, &w->in.key.dst, w->in.key.dport, FLOW_OUT);
	f = &w->scratch.found;
	if (!flow_read(&w->scratch.entry_key, f) || f->flags & (FLOW_FORWARD | FLOW_SNAT))
		return 0;
	flow_end_by_reply(w, f);

	/* The table may have evicted the forward entry before. */
	entry_key_of_replies(w, &w->in.key, &w->in.key.dst, w->in.key.dport, FLOW_OUT);
	flow_delete(&w->scratch.entry_key);
	return 0;
}
