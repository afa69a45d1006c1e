/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Addresses of this node. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

/* What they are for. pkg/service/link/link.go has the order. An address that is not set is zero.
 */
enum node_addr {
	SNAT_IPV4, /* the source of packets to backends on other nodes; no host or pod has it */
	SNAT_IPV6,
	NODE_IPV4, /* where the kernel refuses; the source of packets to backends outside */
	NODE_IPV6,
	NODE_ADDRS,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NODE_ADDRS);
	__type(key, __u32);
	__type(value, struct addr);
} service_self SEC(".maps");

/* Returns this node's address of the family, or NULL if it has none. which is the IPv4 one. */
static __always_inline struct addr *node_addr(int family, __u32 which)
{
	__u32 at = which + (family == 6);
	struct addr *a = bpf_map_lookup_elem(&service_self, &at);

	if (!a || (!a->word[0] && !a->word[1] && !a->word[3]))
		return 0;
	return a;
}
