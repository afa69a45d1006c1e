// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The guard at tc ingress of every guarded link: neither a tunnel nor a pod's. It drops packets of
 * the cluster that arrive outside a tunnel.
 */
#include "guard/guard.h"

/* Judges a packet that comes in by a link with Ethernet headers. */
SEC("tc")
int guard_ingress(struct __sk_buff *skb)
{
	return guard_in(skb, BASE_DATA);
}

/* Judges a packet that comes in by a link without Ethernet headers. */
SEC("tc")
int guard_ingress_l3(struct __sk_buff *skb)
{
	return guard_in(skb, BASE_NETWORK);
}

char _license[] SEC("license") = "Dual BSD/GPL";
