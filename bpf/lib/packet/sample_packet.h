/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Samples the headers of a packet. */
#pragma once

#include "kernel.h"
#include "packet/packet.h"
#include "packet/sample.h"

/* An ARP message for IPv4 (RFC 826). */
#define ARP_SIZE 28

/* Reports whether ports follow the IP header (IANA): TCP, UDP and SCTP. */
static __always_inline int has_ports(__u8 protocol)
{
	return protocol == PROTO_TCP || protocol == PROTO_UDP || protocol == PROTO_SCTP;
}

/* Returns how many bytes from the IP header at off are headers, or 0 if it is not one. */
static __always_inline __u32 sample_size(struct __sk_buff *skb, enum packet_base base, __u32 off)
{
	struct ipv4_header h; /* next_header of IPv6 is in its first half too */
	__u32 size;

	if (packet_load(skb, base, off, &h, sizeof(h)))
		return 0;
	switch (h.version_ihl >> 4) {
	case 4:
		size = (h.version_ihl & 0xf) * 4;
		return size + (!(h.frag & bpf_htons(0x1fff)) && has_ports(h.protocol) ? 4 : 0);
	case 6:
		return sizeof(struct ipv6_header) +
		       (has_ports(((__u8 *)&h)[6]) ? sizeof(__be32) : 0);
	}
	return 0;
}

/* Copies the headers of the packet to s. A packet that ends before has none. */
static __always_inline void sample_headers(
	struct __sk_buff *skb, struct drop_sample *s, enum packet_base base)
{
	__u32 off = 0;
	__u64 size; /* 64 bits: the verifier forgets the bounds of a register that is narrowed */
	__be16 type = skb->protocol;

	if (base == BASE_DATA) {
		off = ETH_HLEN;
#pragma unroll
		for (int i = 0; i <= VLAN_TAGS_MAX; i++) {
			if (bpf_skb_load_bytes(skb, off - sizeof(type), &type, sizeof(type)))
				return;
			if (!is_vlan(type))
				break;
			off += 4;
		}
	}

	s->type = type;
	size = type == bpf_htons(ETH_P_ARP) ? ARP_SIZE : sample_size(skb, base, off);
	/* Two steps: one would become a difference, which the verifier does not follow. */
	if (size > SAMPLE_HEADERS)
		return;
	asm volatile("" : "+r"(size));
	if (size < sizeof(struct ipv4_header))
		return;
	if (!packet_load(skb, base, off, s->headers, size))
		s->size = size;
}

/* Keeps a sample of a packet that is dropped for the reason, within its limits. */
static __noinline void sample_packet(struct __sk_buff *skb, __u32 reason, enum packet_base base)
{
	struct drop_sample *s = sample_begin(reason, skb->ingress_ifindex);

	if (!s)
		return;

	if (skb->ifindex != skb->ingress_ifindex)
		s->out = skb->ifindex;
	sample_headers(skb, s, base);
	bpf_ringbuf_submit(s, 0);
}
