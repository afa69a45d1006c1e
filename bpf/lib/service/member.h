/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The members of a run of backends, for clients that stay with one: UDP flows and session affinity.
 * A member that drains keeps its flows and gets no new client. Groups of UDP and with affinity have
 * draining members behind the others.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "service/backend.h"
#include "service/frontend.h"

/* Steps that bisect the longest run: 2^24 slots. */
#define MEMBER_STEPS 25

/* Orders a backend and an address with its port as Go does: by their bytes. */
static __always_inline int member_order(
	const struct backend *b, const struct addr *addr, __be16 port)
{
	for (int i = 0; i < 4; i++) {
		__u32 x = bpf_ntohl(b->addr.word[i]), y = bpf_ntohl(addr->word[i]);

		if (x != y)
			return x < y ? -1 : 1;
	}
	return (int)bpf_ntohs(b->port) - (int)bpf_ntohs(port);
}

/*
 * Reports whether the sorted slots from first up to end have a backend (binary search). It is not
 * inlined, so that the verifier checks the loop once. The verifier needs a comparison of addr
 * with NULL.
 */
__noinline int member_find(__u32 first, __u32 end, const struct addr *addr, __be16 port)
{
	if (!addr)
		return 0;

	for (int i = 0; i < MEMBER_STEPS && first < end; i++) {
		__u32 middle = first + (end - first) / 2;
		struct backend *b = slot_lookup(middle);
		int order;

		if (!b)
			return 0;

		order = member_order(b, addr, port);
		if (!order)
			return 1;

		if (order < 0)
			first = middle + 1;
		else
			end = middle;
	}
	return 0;
}

/* Reports whether a backend of f may keep its flows. f must be looked up again afterwards. */
static __always_inline int member_is_there(
	const struct frontend *f, const struct addr *addr, __be16 port)
{
	__u32 drains = f->first + f->count;

	return member_find(f->first, drains, addr, port) ||
	       member_find(drains, drains + f->draining, addr, port);
}
