// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The guard at tc ingress of every link that is neither a tunnel nor a pod's: a packet of the
 * cluster that arrives outside a tunnel is dropped.
 */
#include "guard.h"

SEC("tc")
int guard_ingress(struct __sk_buff *skb)
{
	struct packet p = {};

	return guard_in(skb, parse_ethernet(skb, &p), &p);
}

/* For links without Ethernet headers. */
SEC("tc")
int guard_ingress_l3(struct __sk_buff *skb)
{
	struct packet p = {};

	return guard_in(skb, parse_l3(skb, &p), &p);
}

char _license[] SEC("license") = "Dual BSD/GPL";
