/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Samples of dropped packets, in a ring that veild reads. They wait there while veild is away. Only
 * headers are copied: up to the ports, no payload.
 *
 * A share for each reason and link comes first, then a limit for each reason. So a pod that is
 * often dropped takes nothing from the limit that others need. Both are virtual scheduling (GCRA,
 * ITU-T I.371 appendix I).
 */
#pragma once

#include "kernel.h"
#include "packet/packet.h"

/* Samples of a reason of the guard have its number. SAMPLE_SERVICE and more is for services. */
#define SAMPLE_SERVICE 256
#define SAMPLE_REASONS 320

#define SECOND 1000000000ULL
/* Burst and rate of a reason give at most 200 samples in any second. */
#define SAMPLE_BURST	100
#define SAMPLE_INTERVAL (SECOND / 100)
/* The same for a reason and a link. */
#define SHARE_BURST    10
#define SHARE_INTERVAL (SECOND / 2)
#define SHARES_MAX     4096

#define SAMPLES_SIZE (512 * 1024)
/* An IPv4 header with options, and ports. */
#define SAMPLE_HEADERS 64
/* An ARP message for IPv4 (RFC 826). */
#define ARP_SIZE 28

/* What is kept of a dropped packet. pkg/guard/sample reads it. */
struct drop_sample {
	__u64 time; /* CLOCK_BOOTTIME */
	__u32 reason;
	__u32 in; /* the ifindex by which the packet came in; 0 means that this node sent it */
	__u32 out;
	__be16 type; /* EtherType */
	__u16 size;  /* bytes of headers */
	__u8 headers[SAMPLE_HEADERS];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, SAMPLES_SIZE);
} drop_samples SEC(".maps");

struct sample_limit {
	struct bpf_spin_lock lock;
	__u32 unused;
	__u64 due;     /* when the next sample would come at the rate */
	__u64 written; /* samples in the ring, ever */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SAMPLE_REASONS);
	__type(key, __u32);
	__type(value, struct sample_limit);
} drop_limits SEC(".maps");

struct sample_share {
	__u32 reason;
	__u32 link;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SHARES_MAX);
	__type(key, struct sample_share);
	__type(value, __u64); /* when the next sample would come at the rate */
} drop_shares SEC(".maps");

/* Takes a sample from the share of a link. Returns 0 if nothing is left. */
static __always_inline int share_take(__u32 reason, __u32 link, __u64 now)
{
	struct sample_share key = {.reason = reason, .link = link};
	__u64 *due = bpf_map_lookup_elem(&drop_shares, &key), first = now + SHARE_INTERVAL;

	if (!due) {
		bpf_map_update_elem(&drop_shares, &key, &first, BPF_ANY);
		return 1;
	}
	if (*due > now + (SHARE_BURST - 1) * SHARE_INTERVAL)
		return 0;

	/* CPUs at the same time may take one sample too many: the limit of the reason holds. */
	*due = (*due > now ? *due : now) + SHARE_INTERVAL;
	return 1;
}

/* Takes a sample from the limit of a reason. Returns 0 if nothing is left. */
static __always_inline int limit_take(struct sample_limit *limit, __u64 now)
{
	int taken = 0;

	bpf_spin_lock(&limit->lock);
	if (limit->due <= now + (SAMPLE_BURST - 1) * SAMPLE_INTERVAL) {
		limit->due = (limit->due > now ? limit->due : now) + SAMPLE_INTERVAL;
		taken = 1;
	}
	bpf_spin_unlock(&limit->lock);

	return taken;
}

/* Returns room for a sample that counts as written, or NULL if the packet is skipped. */
static __always_inline struct drop_sample *sample_begin(__u32 reason, __u32 link)
{
	struct sample_limit *limit = bpf_map_lookup_elem(&drop_limits, &reason);
	__u64 now = bpf_ktime_get_boot_ns();
	struct drop_sample *s;

	if (!limit || !share_take(reason, link, now) || !limit_take(limit, now))
		return 0;
	s = bpf_ringbuf_reserve(&drop_samples, sizeof(*s), 0);
	if (!s)
		return 0; /* veild is away, and the ring is full */

	__sync_fetch_and_add(&limit->written, 1);
	s->time = now;
	s->reason = reason;
	s->in = link;
	s->out = 0;
	s->type = 0;
	s->size = 0;
	return s;
}

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
