// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Services for packets that no socket of this node's made: of clients outside, of pods whose cgroup
 * has no programs, and what comes back. docs/design/0007-service-table.md says where they are
 * attached and how they meet the guard.
 */
#include "guard.h"
#include "steer.h"

/* Links that the guard is at, behind it. */
SEC("tc")
int service_in(struct __sk_buff *skb)
{
	return steer_in(skb, ETH_HLEN, LINK_OUTSIDE);
}

/* For links without Ethernet headers. */
SEC("tc")
int service_in_l3(struct __sk_buff *skb)
{
	return steer_in(skb, 0, LINK_OUTSIDE);
}

/* The same links at egress, where the guard's program passes packets to these: they judge in its
 * place. */
SEC("tc")
int service_out(struct __sk_buff *skb)
{
	struct packet p = {};

	if (steer_out(skb, ETH_HLEN) != VERDICT_NEXT)
		return VERDICT_COUNTED;
	return guard_out(skb, parse_ethernet(skb, &p), &p);
}

SEC("tc")
int service_out_l3(struct __sk_buff *skb)
{
	struct packet p = {};

	if (steer_out(skb, 0) != VERDICT_NEXT)
		return VERDICT_COUNTED;
	return guard_out(skb, parse_l3(skb, &p), &p);
}

/* The host's end of a pod's veth; in is what the pod sends. */
SEC("tc")
int service_pod_in(struct __sk_buff *skb)
{
	return steer_in(skb, ETH_HLEN, LINK_POD);
}

SEC("tc")
int service_pod_out(struct __sk_buff *skb)
{
	return steer_out(skb, ETH_HLEN);
}

/* Tunnels. */
SEC("tc")
int service_tun_in(struct __sk_buff *skb)
{
	return steer_in(skb, 0, LINK_TUNNEL);
}

SEC("tc")
int service_tun_out(struct __sk_buff *skb)
{
	return steer_out(skb, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
