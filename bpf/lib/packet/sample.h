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

/* Samples of a reason of the guard have its number. SAMPLE_SERVICE and more is for services. */
#define SAMPLE_SERVICE 256
#define SAMPLE_REASONS 320

#define SECOND 1000000000ULL
/*
 * Burst and rate of a reason give at most 100 samples in any second. The tables of nftables may add
 * as many of the same name, and so may programs at sockets.
 */
#define SAMPLE_BURST	50
#define SAMPLE_INTERVAL (SECOND / 50)
/* The same for a reason and a link. */
#define SHARE_BURST    10
#define SHARE_INTERVAL (SECOND / 2)
#define SHARES_MAX     4096

#define SAMPLES_SIZE (512 * 1024)
/* An IPv4 header with options, and ports. */
#define SAMPLE_HEADERS 64
/* What is kept of a dropped packet. pkg/guard/sample reads it. */
struct drop_sample {
	__u64 time; /* CLOCK_BOOTTIME */
	__u32 reason;
	__u32 in; /* the ifindex by which the packet came in; 0 means that this node sent it */
	__u32 out;
	__be16 type; /* EtherType */
	__u16 size;  /* bytes of headers */
	/* Of a refusal at a socket: a struct sample_socket. */
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
	__u32 link; /* of a refusal at a socket: the end of the ID of the pod's cgroup */
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
