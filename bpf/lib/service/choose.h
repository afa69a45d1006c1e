/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The choice of a backend. Go writes frontends and backends while programs read them;
 * docs/design/0007-service-table.md explains why no reader gets another service's backend.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "service/affinity.h"
#include "service/backend.h"
#include "service/frontend.h"
#include "service/member.h"

/* How often a choice is tried while the frontend changes. */
#define CHOICE_TRIES 8

enum choice {
	CHOICE_NO_SERVICE, /* no service has the address */
	CHOICE_BACKEND,	   /* a backend was chosen */
	CHOICE_NO_BACKEND, /* the service has none */
	CHOICE_UNSTEADY	   /* the frontend changed at each look-up */
};

/*
 * Orders the reads before it and the reads behind it. An atomic operation that returns the old
 * value is a full barrier on every processor (Documentation/atomic_t.txt, ORDERING). One without,
 * such as an addition whose result is unused, is a barrier on x86 only.
 */
static __always_inline void full_barrier(void)
{
	__u64 order = 0;

	__sync_swap(&order, 1);
}

/*
 * Reports whether a UDP flow may stay with a backend: the frontend is still there and the backend
 * is still a member of its run. f is scratch space.
 */
static __always_inline int frontend_has_backend(
	const struct frontend_key *key, struct frontend *f, const struct addr *addr, __be16 port)
{
	struct frontend *now;
	int has;

	for (int i = 0; i < CHOICE_TRIES; i++) {
		now = frontend_lookup(key);
		if (!now)
			return 0;

		frontend_copy(f, now);
		has = member_is_there(f, addr, port);
		full_barrier();
		now = frontend_lookup(key);
		if (now && frontend_same(now, f))
			return has;
	}

	return 0;
}

/*
 * Chooses a backend of the frontend for a client, in the cluster or outside. Sets f to the frontend
 * and to to the backend. The caller must call affinity_remember if the client gets the backend.
 * After the backend was read the frontend is looked up again. Another revision means that another
 * service may have the backend.
 */
static __always_inline enum choice backend_choose(const struct frontend_key *key, __u64 client,
	int outside, struct frontend *f, struct backend *to)
{
	struct affinity_key who = {.client = client};
	struct frontend *now;

	for (int i = 0; i < CHOICE_TRIES; i++) {
		now = frontend_lookup(key);
		if (!now)
			return CHOICE_NO_SERVICE;

		frontend_copy(f, now);
		who.group = f->group;
		if (f->count && !(f->affinity && affinity_lookup(f, &who, outside, to)) &&
			!backend_pick(f, to))
			continue;

		full_barrier();
		now = frontend_lookup(key);
		if (!now || !frontend_same(now, f))
			continue;

		if (!f->count)
			return CHOICE_NO_BACKEND;
		return CHOICE_BACKEND;
	}

	return CHOICE_UNSTEADY;
}
