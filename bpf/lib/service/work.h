/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The data of the programs at tc about the packet in work: more than fits on their stack. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/packet.h"
#include "service/backend.h"
#include "service/flow.h"
#include "service/frontend.h"

/* A slot of the quota of a client's address; see quota.h. */
struct quota_key {
	struct addr client;
	__u32 number;
};

/* A datagram of which a fragment was seen at a hook (enum flow_hook); see fragment.h. */
struct fragment_key {
	struct addr src;
	struct addr dst;
	__u32 id;
	__u32 hook;
};

/*
 * The packet in work. An upgrade adopts a pinned map of the same size, and code relies on the zero
 * bytes of padding in keys. So a change of the layout has to change the size.
 */
struct work {
	/* The packet as it is at the hook. */
	struct {
		struct packet packet;
		__u8 tcp_flags;	   /* 0 if it is not TCP */
		__u8 has_ethernet; /* whether it begins with an Ethernet header */
		__u8 fragment;	   /* FRAGMENT_* */
		__u32 fragment_id; /* of a fragment */
		struct flow_key key;
	} in;

	/* What was decided. */
	struct {
		struct backend backend; /* of the packet's flow */
		struct flow entry;	/* how the packet is rewritten */
		__u32 flags;		/* that all entries of the flow get that is stored */
		__u8 rpf_passed; /* whether the source passed the reverse path filter; see rpf.h */
	} out;

	/* What functions pass to each other. Any of them may change it. */
	struct {
		struct flow_key entry_key;   /* of the entry that is looked up or stored */
		struct flow_key forward_key; /* of the flow that is ended */
		struct flow found;	     /* a copy of an entry that was looked up */
		struct quota_key quota_key;
		struct fragment_key fragment_key;
		struct frontend frontend;
		struct frontend_key frontend_key;
		struct packet inner; /* of an ICMP error */
	} scratch;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} service_work SEC(".maps");

/*
 * Returns the packet in work on this CPU. Functions that are not inlined have only numbers as
 * parameters and call this themselves. So the verifier checks each of them once, not at each call.
 */
static __always_inline struct work *work_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&service_work, &zero);
}
