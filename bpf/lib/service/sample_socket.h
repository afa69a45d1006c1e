/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Samples refusals at sockets. There is no packet: the socket has not sent one. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/sample.h"
#include "service/frontend.h"

/* What is kept of a refusal. pkg/guard/sample reads it. */
struct sample_socket {
	__u64 netns;	 /* the cookie of the socket's network namespace */
	struct addr dst; /* of the service */
	__be16 port;
	__u8 protocol;
};

/* The level of the cgroups of pods in their tree, or of containers; 0 if it is not known. */
volatile const __u32 pod_cgroup_level;

/*
 * Returns whose share the refusal takes: the end of the ID of the pod's cgroup. A pod can make
 * network namespaces, and cgroups below its own, but none at this level.
 */
static __always_inline __u32 share_owner(void)
{
	__u64 id = 0;

	if (pod_cgroup_level)
		id = bpf_get_current_ancestor_cgroup_id(pod_cgroup_level);
	return id ? id : bpf_get_current_cgroup_id();
}

/* Keeps a sample of the socket of netns that the service of key refused, within its limits. */
static __noinline void sample_socket(__u32 why, __u64 netns, const struct frontend_key *key)
{
	struct drop_sample *s = sample_begin(SAMPLE_SERVICE + why, share_owner());
	struct sample_socket *socket;

	if (!s)
		return;

	socket = (struct sample_socket *)s->headers;
	socket->netns = netns;
	socket->dst = key->addr;
	socket->port = key->port;
	socket->protocol = key->protocol;
	s->in = 0;
	s->size = sizeof(*socket);
	bpf_ringbuf_submit(s, 0);
}
