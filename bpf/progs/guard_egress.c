// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The guard at tc egress of every guarded link: neither a tunnel nor a pod's. It drops packets of
 * the cluster, and of a pod to a node, that would leave outside a tunnel. All NAT is done by then:
 * netfilter has translated the packet before, and services translate it as the first step here. So
 * the guard sees what the network would.
 */
#include "guard/guard.h"
#include "guard/translate.h"

/* Judges a packet that leaves by a link with Ethernet headers. */
SEC("tc")
int guard_egress(struct __sk_buff *skb)
{
	translate(skb, TRANSLATE_ETHERNET);
	return guard_out(skb, BASE_DATA);
}

/* Judges a packet that leaves by a link without Ethernet headers. */
SEC("tc")
int guard_egress_l3(struct __sk_buff *skb)
{
	translate(skb, TRANSLATE_L3);
	return guard_out(skb, BASE_NETWORK);
}

char _license[] SEC("license") = "Dual BSD/GPL";
