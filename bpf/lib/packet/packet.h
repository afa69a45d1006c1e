/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Parses the Ethernet and IP headers of a packet.
 *
 * On a link with Ethernet headers a program at tc sees the frame from its first byte, in both
 * directions. The parser reads the frame and nothing else: these bytes leave, regardless of the
 * kernel's metadata. On a link without (tun, wireguard, ipip, ppp) the IP header is at the
 * kernel's network header and its version is in skb->protocol.
 *
 * All reads are by helper. So a read of bytes in page fragments succeeds too, and a read fails only
 * where the packet ends.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/reasons.h"

/* VLAN tags that the parser reads, including the one that the kernel took out of the frame. */
#define VLAN_TAGS_MAX 2

/* What parse_* return, besides a reason to drop. */
#define PACKET_IP     0
#define PACKET_NOT_IP (-1)
#define PACKET_ARP    (-2) /* base and payload are set: where the message begins */

/* No protocol has this number (IANA: reserved). */
#define PROTO_NONE 255

/* The fragment header of IPv6 (RFC 8200 section 4.5). */
#define PROTO_FRAGMENT 44

struct ipv4_header {
	__u8 version_ihl;
	__u8 tos;
	__be16 len;
	__be16 id;
	__be16 frag;
	__u8 ttl;
	__u8 protocol;
	__be16 check;
	__be32 src;
	__be32 dst;
};

struct ipv6_header {
	__u8 version_class;
	__u8 class_flow[3];
	__be16 payload_len;
	__u8 next_header;
	__u8 hop_limit;
	struct addr src;
	struct addr dst;
};

/* What the offset of a header counts from. */
enum packet_base {
	BASE_DATA,    /* the first byte of skb->data */
	BASE_NETWORK, /* the kernel's network header */
};

/* Returns the base of a packet whose IP header is at an offset. */
static __always_inline enum packet_base network_base(__u32 network)
{
	return network ? BASE_DATA : BASE_NETWORK;
}

/* What the parser found. */
struct packet {
	struct addr src;
	struct addr dst;
	int family; /* 4 or 6 */
	/* The header behind the IP header: its protocol, and where it begins. */
	__u8 protocol;
	enum packet_base base;
	__u32 payload;
	/* Whether it is an IPv4 fragment. An IPv6 fragment has protocol 44 instead. */
	__u8 fragment;
};

/* Copies len bytes at off to to. Returns 0, or an error if the packet ends before. */
static __always_inline int packet_load(
	struct __sk_buff *skb, enum packet_base base, __u32 off, void *to, __u32 len)
{
	if (base == BASE_DATA)
		return bpf_skb_load_bytes(skb, off, to, len);
	return bpf_skb_load_bytes_relative(skb, off, to, len, BPF_HDR_START_NET);
}

/* Sets p from the IPv4 header at off. Returns PACKET_IP or a reason to drop. */
static __always_inline int parse_ipv4(
	struct __sk_buff *skb, enum packet_base base, __u32 off, struct packet *p)
{
	struct ipv4_header h;

	if (packet_load(skb, base, off, &h, sizeof(h)))
		return REASON_IPV4_TRUNCATED;
	if (h.version_ihl >> 4 != 4)
		return REASON_IP_VERSION;

	p->family = 4;
	/* Only the first fragment has the next header. */
	p->protocol = h.frag & bpf_htons(0x1fff) ? PROTO_NONE : h.protocol;
	p->fragment = (h.frag & bpf_htons(0x3fff)) != 0;
	p->base = base;
	p->payload = off + (h.version_ihl & 0xf) * 4;
	p->src = addr_from_v4(h.src);
	p->dst = addr_from_v4(h.dst);

	return PACKET_IP;
}

/* Sets p from the IPv6 header at off. Returns PACKET_IP or a reason to drop. */
static __always_inline int parse_ipv6(
	struct __sk_buff *skb, enum packet_base base, __u32 off, struct packet *p)
{
	struct ipv6_header h;

	if (packet_load(skb, base, off, &h, sizeof(h)))
		return REASON_IPV6_TRUNCATED;
	if (h.version_class >> 4 != 6)
		return REASON_IP_VERSION;

	p->family = 6;
	p->protocol = h.next_header;
	p->fragment = 0;
	p->base = base;
	p->payload = off + sizeof(h);
	p->src = h.src;
	p->dst = h.dst;

	return PACKET_IP;
}

/* Reports whether the EtherType is the type of a VLAN tag. */
static __always_inline int is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

/*
 * Sets p from a packet of a link with Ethernet headers. Returns PACKET_IP, PACKET_NOT_IP,
 * PACKET_ARP or a reason to drop.
 */
static __always_inline int parse_ethernet(struct __sk_buff *skb, struct packet *p)
{
	__u32 tags = skb->vlan_present ? 1 : 0;
	__u32 off = ETH_HLEN;
	__be16 proto;

	if (bpf_skb_load_bytes(skb, ETH_HLEN - sizeof(proto), &proto, sizeof(proto)))
		return REASON_ETHERNET_TRUNCATED;

#pragma unroll
	for (int i = 0; i <= VLAN_TAGS_MAX; i++) {
		if (!is_vlan(proto))
			break;
		if (++tags > VLAN_TAGS_MAX)
			return REASON_VLAN_DEPTH;
		if (bpf_skb_load_bytes(skb, off + 2, &proto, sizeof(proto)))
			return REASON_VLAN_TRUNCATED;
		off += 4;
	}

	if (proto == bpf_htons(ETH_P_IP))
		return parse_ipv4(skb, BASE_DATA, off, p);
	if (proto == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(skb, BASE_DATA, off, p);
	if (proto != bpf_htons(ETH_P_ARP))
		return PACKET_NOT_IP;

	p->base = BASE_DATA;
	p->payload = off;
	return PACKET_ARP;
}

/* What most packets need: two IPv4 headers with options, ICMP between them, and ports. */
#define HEADERS_MAX 132

/*
 * Sets p from a packet of a link without Ethernet headers. Returns PACKET_IP, PACKET_NOT_IP or a
 * reason to drop.
 */
static __always_inline int parse_l3(struct __sk_buff *skb, struct packet *p)
{
	__be16 proto = skb->protocol;
	__u8 first = 0;

	/* Reads from the network header see only the linear part, so pull the headers into it. */
	bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX);

	if (proto == bpf_htons(ETH_P_IP))
		return parse_ipv4(skb, BASE_NETWORK, 0, p);
	if (proto == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(skb, BASE_NETWORK, 0, p);
	if (is_vlan(proto))
		return REASON_VLAN_DEPTH;
	if (proto != 0 && proto != bpf_htons(ETH_P_ALL))
		return PACKET_NOT_IP;

	/* A raw socket can send without a protocol. Then the first byte has the version. */
	if (packet_load(skb, BASE_NETWORK, 0, &first, sizeof(first)))
		return PACKET_NOT_IP;
	if (first >> 4 == 4)
		return parse_ipv4(skb, BASE_NETWORK, 0, p);
	if (first >> 4 == 6)
		return parse_ipv6(skb, BASE_NETWORK, 0, p);
	return PACKET_NOT_IP;
}
