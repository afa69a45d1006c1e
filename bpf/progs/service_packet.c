// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Services at tc, for packets that the programs at sockets did not translate: of external clients,
 * of pods whose cgroup has no programs, and their replies. docs/design/0007-service-table.md lists
 * where the programs are attached and how they meet the guard.
 */
#include "guard/guard.h"
#include "service/tc_path.h"

/* Ingress of a guarded link with Ethernet headers, behind the guard's program. */
SEC("tc")
int service_in(struct __sk_buff *skb)
{
	return tc_in(skb, ETH_HLEN, LINK_UNDERLAY);
}

/* Ingress of a guarded link without Ethernet headers, behind the guard's program. */
SEC("tc")
int service_in_l3(struct __sk_buff *skb)
{
	return tc_in(skb, 0, LINK_UNDERLAY);
}

/*
 * Egress of a guarded link with Ethernet headers. The guard's program tail calls it, so it judges
 * in the guard's place.
 */
SEC("tc")
int service_out(struct __sk_buff *skb)
{
	if (tc_out(skb, ETH_HLEN) != VERDICT_NEXT)
		return VERDICT_COUNTED;

	return guard_out(skb, BASE_DATA);
}

/* Egress of a guarded link without Ethernet headers. It judges in the guard's place too. */
SEC("tc")
int service_out_l3(struct __sk_buff *skb)
{
	if (tc_out(skb, 0) != VERDICT_NEXT)
		return VERDICT_COUNTED;

	return guard_out(skb, BASE_NETWORK);
}

/* Ingress of the host's end of a pod's veth: packets that the pod sends. */
SEC("tc")
int service_pod_in(struct __sk_buff *skb)
{
	return tc_in(skb, ETH_HLEN, LINK_POD);
}

/* Egress of the host's end of a pod's veth: packets that the pod gets. */
SEC("tc")
int service_pod_out(struct __sk_buff *skb)
{
	return tc_out(skb, ETH_HLEN);
}

/* Ingress of a tunnel. */
SEC("tc")
int service_tun_in(struct __sk_buff *skb)
{
	return tc_in(skb, 0, LINK_TUNNEL);
}

/* Egress of a tunnel. */
SEC("tc")
int service_tun_out(struct __sk_buff *skb)
{
	return tc_out(skb, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
