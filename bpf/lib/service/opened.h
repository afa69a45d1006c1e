/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The TCP connections that were opened on the fast path and are not closed. Conntrack has no entry
 * for them. When a policy selects a pod, Go adds the connections that the policy allows to it, with
 * the end that opened each; then they go on past netfilter's rules.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/l4.h"
#include "service/flow.h"
#include "service/work.h"

#define SERVICE_OPENED_MAX 65536

/* The links, by index, by which a connection reaches its ends. An index is not used again, so a
 * pod that gets the address of another does not get its connections. */
struct opened {
	__u32 client;
	__u32 backend;
};

/*
 * A key has the client as the source and the backend as the destination, as between the hooks:
 * flow.h. Its protocol is TCP and its hook 0.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_OPENED_MAX);
	__type(key, struct flow_key);
	__type(value, struct opened);
} service_opened SEC(".maps");

/* Sets w->scratch.entry_key to the connection from the source of w->in to dst and dport. */
static __always_inline void opened_key_set(struct work *w, const struct addr *dst, __be16 dport)
{
	w->scratch.entry_key.src = w->in.key.src;
	w->scratch.entry_key.sport = w->in.key.sport;
	w->scratch.entry_key.dst = *dst;
	w->scratch.entry_key.dport = dport;
	w->scratch.entry_key.protocol = PROTO_TCP;
	w->scratch.entry_key.hook = 0;
}

/* Adds the connection that the segment w->in opens to dst and dport. */
static __always_inline void opened_add(
	struct work *w, const struct addr *dst, __be16 dport, __u32 client, __u32 backend)
{
	struct opened links = {.client = client, .backend = backend};

	opened_key_set(w, dst, dport);
	bpf_map_update_elem(&service_opened, &w->scratch.entry_key, &links, BPF_ANY);
}

/* Deletes the connection that the segment w->in to dst and dport closes, by whichever end. */
static __always_inline void opened_delete(struct work *w, const struct addr *dst, __be16 dport)
{
	opened_key_set(w, dst, dport);
	bpf_map_delete_elem(&service_opened, &w->scratch.entry_key);

	w->scratch.entry_key.src = *dst;
	w->scratch.entry_key.sport = dport;
	w->scratch.entry_key.dst = w->in.key.src;
	w->scratch.entry_key.dport = w->in.key.sport;
	bpf_map_delete_elem(&service_opened, &w->scratch.entry_key);
}
