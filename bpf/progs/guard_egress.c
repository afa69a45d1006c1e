// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The guard at tc egress of every link that is neither a tunnel nor a pod's: a packet of the
 * cluster, or of a pod to a node, that would leave outside a tunnel is dropped. Here translation
 * of addresses is done, that of services included, which begins with it: what the packet says is
 * what the network would see.
 */
#include "guard.h"
#include "translate.h"

SEC("tc")
int guard_egress(struct __sk_buff *skb)
{
	struct packet p = {};

	translate(skb, TRANSLATE_ETHERNET);
	return guard_out(skb, parse_ethernet(skb, &p), &p);
}

/* For links without Ethernet headers. */
SEC("tc")
int guard_egress_l3(struct __sk_buff *skb)
{
	struct packet p = {};

	translate(skb, TRANSLATE_L3);
	return guard_out(skb, parse_l3(skb, &p), &p);
}

char _license[] SEC("license") = "Dual BSD/GPL";
