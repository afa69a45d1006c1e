/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Pods that have had a flow to a service address outside the ranges, by their link. The flow table
 * evicts flows, this map does not. If the address were opened, a pod that goes on with an evicted
 * flow would send in clear text. So Go keeps the address closed while one of these links exists.
 */
#pragma once

#include "kernel.h"
#include "guard/ranges.h"
#include "packet/addr.h"
#include "service/work.h"

#define SERVICE_CALLERS_MAX 262144

/*
 * The number of addresses that the pods behind one link may have flows to, while the link exists.
 * Without it one pod could fill the map, and no other pod would get a flow to an address that it
 * has not had one to. The map has room for 128 links.
 */
#define SERVICE_CALLERS_SHARE 2048

struct pod_client {
	struct addr addr; /* of the service */
	__u32 link;	  /* ifindex of the client's link; 0 is one that Go does not know */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SERVICE_CALLERS_MAX);
	__type(key, struct pod_client);
	__type(value, __u8);
} service_callers SEC(".maps");

/* How many entries of service_callers each link has, by ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u32);
} service_shares SEC(".maps");

/* Returns how many entries the link has. Returns 0 if that cannot be counted. */
static __always_inline __u32 *pod_client_share(__u32 link)
{
	__u32 none = 0, *n = bpf_map_lookup_elem(&service_shares, &link);

	if (n)
		return n;

	/* It fails if another processor was faster. */
	bpf_map_update_elem(&service_shares, &link, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&service_shares, &link);
}

/*
 * Remembers that a client behind the link has had a flow to the destination of w->in.key. Returns 0
 * if the map is full, or the link has its share.
 */
__noinline int pod_client_remember(__u32 link)
{
	struct work *w = work_get();
	struct pod_client client;
	__u8 one = 1;
	__u32 *n;

	if (!w)
		return 0;

	if (in_ranges(&w->in.key.dst))
		return 1; /* ranges are never opened */

	client.addr = w->in.key.dst;
	client.link = link;
	if (bpf_map_lookup_elem(&service_callers, &client))
		return 1;

	n = pod_client_share(link);
	if (!n || *n >= SERVICE_CALLERS_SHARE)
		return 0;

	__sync_fetch_and_add(n, 1);
	if (!bpf_map_update_elem(&service_callers, &client, &one, BPF_ANY))
		return 1;

	__sync_fetch_and_add(n, -1); /* the map is full */
	return 0;
}
