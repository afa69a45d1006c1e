// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * At tc ingress of the host end of a pod's veth, so on everything that the pod sends: marks the
 * packet as a pod's, takes away a mark that only tunnels may have, and drops it when its source
 * is not an address of the pod.
 */
#include "kernel.h"
#include "drop.h"
#include "packet.h"
#include "pod_addrs.h"
#include "settings.h"

static __always_inline int is_own(const struct pod_addrs *pod, const struct packet *p)
{
	struct addr v4;

	if (p->family == 6)
		return (pod->flags & POD_HAS_V6) && addr_equal(&pod->v6, &p->src);
	v4 = addr_from_v4(pod->v4);
	return (pod->flags & POD_HAS_V4) && addr_equal(&v4, &p->src);
}

SEC("tc")
int pod_ingress(struct __sk_buff *skb)
{
	const struct pod_addrs *pod;
	struct packet p = {};
	int parsed;

	skb->mark = (skb->mark & ~tunnel_mark) | pod_mark;
	parsed = parse_ethernet(skb, &p);
	if (parsed == PACKET_NOT_IP)
		return VERDICT_NEXT;
	if (parsed != PACKET_IP)
		return drop(parsed);
	pod = pod_addrs_of(skb->ifindex);
	if (!pod)
		return drop(REASON_POD_UNKNOWN_LINK);
	if (!is_own(pod, &p))
		return drop(REASON_POD_SPOOFED_SOURCE);
	return VERDICT_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
