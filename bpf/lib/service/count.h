/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counters of services. */
#pragma once

#include "kernel.h"

#define SERVICE_COUNTS_MAX 32

/* What is counted, once for each choice of a backend. bpf/servicecounts.go has the same order.
 */
enum service_count {
	COUNT_SOCKET_TCP,
	COUNT_SOCKET_UDP,
	COUNT_SOCKET_REFUSED,  /* the service has no backend */
	COUNT_SOCKET_UNSTEADY, /* refused: the frontend changed at each look-up */
	COUNT_PACKET_TCP,
	COUNT_PACKET_UDP,
	COUNT_PACKET_REFUSED,
	COUNT_PACKET_LOCAL,	/* dropped: the policy is Local and this node has no backend */
	COUNT_PACKET_SOURCE,	/* dropped: the client is not in the service's source ranges */
	COUNT_PACKET_UNSTEADY,	/* dropped: the frontend changed at each look-up */
	COUNT_PACKET_ADDRESS,	/* dropped: this node has no address for SNAT */
	COUNT_PACKET_PORT,	/* dropped: no port for SNAT, no other backend, or no room */
	COUNT_PACKET_MOVED,	/* UDP flows that got another backend because theirs is gone */
	COUNT_PACKET_HOST_PORT, /* pods that left the fast path to a pod for its host port */
	COUNT_PACKET_FRAGMENT,	/* dropped: it came before the first fragment of its datagram */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICE_COUNTS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} service_counts SEC(".maps");

/* Adds one to a counter. */
static __always_inline void service_count(__u32 what)
{
	__u64 *count = bpf_map_lookup_elem(&service_counts, &what);

	/* Another task of this CPU may preempt a program at a socket here. */
	if (count)
		__sync_fetch_and_add(count, 1);
}
