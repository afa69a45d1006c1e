/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Definitions of the kernel and of libbpf that every program needs. */
#pragma once

#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* EtherTypes (linux/if_ether.h), in host order. */
#define ETH_HLEN     14
#define ETH_P_ALL    0x0003
#define ETH_P_IP     0x0800
#define ETH_P_ARP    0x0806
#define ETH_P_8021Q  0x8100
#define ETH_P_IPV6   0x86dd
#define ETH_P_8021AD 0x88a8

/* Protocols (IANA). */
#define PROTO_ICMP   1
#define PROTO_TCP    6
#define PROTO_UDP    17
#define PROTO_ICMPV6 58
#define PROTO_SCTP   132

/*
 * Verdicts. Under tcx, -1 is TCX_NEXT: the next program runs. Under a clsact filter the same number
 * is TC_ACT_UNSPEC: the next filter runs. 2 drops the packet under both.
 */
#define VERDICT_NEXT (-1)
#define VERDICT_DROP 2
/* The verdict to drop a packet, if a callee has counted the drop. */
#define VERDICT_COUNTED VERDICT_DROP
