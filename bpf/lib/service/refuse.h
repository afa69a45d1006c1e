/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counts the packets that services refuse, and samples them. */
#pragma once

#include "kernel.h"
#include "packet/packet.h"
#include "packet/sample_packet.h"
#include "service/count.h"

/* Counts a refusal and keeps a sample of the packet. base has the meaning of drop's parameter. */
static __always_inline void service_refuse(struct __sk_buff *skb, __u32 why, enum packet_base base)
{
	service_count(why);
	sample_packet(skb, SAMPLE_SERVICE + why, base);
}

/* Counts the drop of a packet without a backend and returns the verdict, which the program returns.
 */
static __always_inline int service_drop(struct __sk_buff *skb, __u32 why, enum packet_base base)
{
	service_refuse(skb, why, base);
	return VERDICT_DROP;
}
