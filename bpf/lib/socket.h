/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What sockets are told: translation of where they send, and back of what they hear from. */
#pragma once

#include "kernel.h"
#include "service.h"

#define SOCKET_REPLIES_MAX 65536

#define SOCKET_ECONNREFUSED 111

/* Verdicts of programs at sockets. */
#define SOCKET_REFUSE 0
#define SOCKET_GO_ON  1

struct socket_peer {
	__u64 cookie; /* of the socket */
	struct addr addr;
	__be16 port;
	__u8 pad[6];
};

struct socket_addr {
	struct addr addr;
	__be16 port;
	__u8 pad[2];
};

struct socket_flow_key {
	__u64 cookie;
	struct addr addr;
	__be16 port;
	__u8 pad[6];
};

struct socket_flow {
	__u64 pad1; /* former versions' */
	struct addr addr;
	__be16 port;
	__u8 pad[6];
};

/* As which service's address a socket knows a backend. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SOCKET_REPLIES_MAX);
	__type(key, struct socket_peer);
	__type(value, struct socket_addr);
} service_replies SEC(".maps");

/* Which backend the datagrams of an unconnected socket to a service go to. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SOCKET_REPLIES_MAX);
	__type(key, struct socket_flow_key);
	__type(value, struct socket_flow);
} service_sends SEC(".maps");

static __always_inline void socket_count(enum service_verdict verdict, __u32 protocol)
{
	if (verdict == SERVICE_REFUSED)
		service_count(COUNT_SOCKET_REFUSED);
	else if (verdict == SERVICE_UNSTEADY)
		service_count(COUNT_SOCKET_UNSTEADY);
	else
		service_count(protocol == PROTO_UDP ? COUNT_SOCKET_UDP : COUNT_SOCKET_TCP);
}

/* to becomes the backend that datagrams to at, which is key, went to, if flows may stay with it. */
static __always_inline int socket_same(const struct service_front_key *key,
	const struct socket_flow_key *at, struct service_slot *to)
{
	struct socket_flow *flow = bpf_map_lookup_elem(&service_sends, at);

	if (!flow)
		return 0;
	to->addr = flow->addr;
	to->port = flow->port;
	return service_has(key, &to->addr, to->port);
}

static __always_inline void socket_note(
	__u64 cookie, const struct service_front_key *key, const struct service_slot *to)
{
	struct socket_peer peer = {.cookie = cookie, .addr = to->addr, .port = to->port};
	struct socket_addr service = {.addr = key->addr, .port = key->port};

	bpf_map_update_elem(&service_replies, &peer, &service, BPF_ANY);
}

/* linux/bpf.h: BPF_TCP_ESTABLISHED, which a UDP socket with a peer is too. */
#define SOCKET_CONNECTED 1

/*
 * The socket asks for an end by itself: what comes from there is no service's any more. A connected
 * one of IPv6 that sends to an IPv4 address is asked with the address of its peer, as if it were
 * not connected (udpv6_sendmsg in net/ipv6/udp.c).
 */
static __always_inline void socket_forget(
	struct bpf_sock_addr *ctx, const struct service_front_key *key, int datagram, __u64 cookie)
{
	struct socket_peer peer = {.cookie = cookie, .addr = key->addr, .port = key->port};

	if (datagram && ctx->sk && ctx->sk->state == SOCKET_CONNECTED)
		return;
	/* Looked for first, since deleting takes a lock. */
	if (bpf_map_lookup_elem(&service_replies, &peer))
		bpf_map_delete_elem(&service_replies, &peer);
}

/* Decides where a socket that asked for key goes. datagram: it is not connected. */
static __always_inline enum service_verdict socket_translate(struct bpf_sock_addr *ctx,
	const struct service_front_key *key, int datagram, struct service_slot *to)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct socket_flow_key at = {.cookie = cookie, .addr = key->addr, .port = key->port};
	struct service_front front = {};
	enum service_verdict verdict;
	__u64 client;

	if (datagram && socket_same(key, &at, to)) {
		socket_note(cookie, key, to);
		return SERVICE_FOUND;
	}
	client = bpf_get_netns_cookie(ctx);
	verdict = service_choose(key, client, &front, to);
	if (verdict == SERVICE_NONE) {
		socket_forget(ctx, key, datagram, cookie);
		return verdict;
	}
	socket_count(verdict, key->protocol);
	if (verdict != SERVICE_FOUND)
		return verdict;
	service_keep(&front, client, to);
	if (datagram) {
		struct socket_flow flow = {.addr = to->addr, .port = to->port};

		bpf_map_update_elem(&service_sends, &at, &flow, BPF_ANY);
	}
	socket_note(cookie, key, to);
	return verdict;
}

/* Whether the kernel has bpf_set_retval (5.18). */
volatile const __u8 service_set_retval = 1;

/* Where nobody listens: the discard port. */
#define SOCKET_NOBODY bpf_htons(9)

/*
 * Who asked for addr gets ECONNREFUSED. Without bpf_set_retval, where a refusal would be EPERM, he
 * is sent where the kernel refuses by itself: to becomes his own loopback.
 */
static __always_inline int socket_refuse(const struct addr *addr, struct service_slot *to)
{
	struct addr loopback6 = {.word = {0, 0, 0, bpf_htonl(1)}};

	if (service_set_retval) {
		bpf_set_retval(-SOCKET_ECONNREFUSED);
		return SOCKET_REFUSE;
	}
	if (is_mapped(addr))
		to->addr = addr_from_v4(bpf_htonl(0x7f000001));
	else
		to->addr = loopback6;
	to->port = SOCKET_NOBODY;
	return SOCKET_GO_ON;
}

static __always_inline int socket_out4(struct bpf_sock_addr *ctx, int datagram)
{
	struct service_front_key key = {.addr = addr_from_v4(ctx->user_ip4),
		.port = ctx->user_port,
		.protocol = ctx->protocol};
	struct service_slot to = {};

	switch (socket_translate(ctx, &key, datagram, &to)) {
	case SERVICE_NONE:
		return SOCKET_GO_ON;
	case SERVICE_FOUND:
		break;
	default:
		if (socket_refuse(&key.addr, &to) == SOCKET_REFUSE)
			return SOCKET_REFUSE;
	}
	ctx->user_ip4 = to.addr.word[3];
	ctx->user_port = to.port;
	return SOCKET_GO_ON;
}

static __always_inline struct addr socket_addr6(struct bpf_sock_addr *ctx)
{
	struct addr a = {
		.word = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};

	return a;
}

static __always_inline void socket_set6(struct bpf_sock_addr *ctx, const struct addr *a)
{
	ctx->user_ip6[0] = a->word[0];
	ctx->user_ip6[1] = a->word[1];
	ctx->user_ip6[2] = a->word[2];
	ctx->user_ip6[3] = a->word[3];
}

static __always_inline int socket_out6(struct bpf_sock_addr *ctx, int datagram)
{
	struct service_front_key key = {
		.addr = socket_addr6(ctx), .port = ctx->user_port, .protocol = ctx->protocol};
	struct service_slot to = {};

	switch (socket_translate(ctx, &key, datagram, &to)) {
	case SERVICE_NONE:
		return SOCKET_GO_ON;
	case SERVICE_FOUND:
		break;
	default:
		if (socket_refuse(&key.addr, &to) == SOCKET_REFUSE)
			return SOCKET_REFUSE;
	}
	socket_set6(ctx, &to.addr);
	ctx->user_port = to.port;
	return SOCKET_GO_ON;
}

/* The service's address that stands for a backend's, NULL is none. */
static __always_inline struct socket_addr *socket_service(
	struct bpf_sock_addr *ctx, const struct addr *addr)
{
	struct socket_peer peer = {
		.cookie = bpf_get_socket_cookie(ctx), .addr = *addr, .port = ctx->user_port};

	return bpf_map_lookup_elem(&service_replies, &peer);
}

static __always_inline int socket_back4(struct bpf_sock_addr *ctx)
{
	struct addr from = addr_from_v4(ctx->user_ip4);
	struct socket_addr *service = socket_service(ctx, &from);

	if (service) {
		ctx->user_ip4 = service->addr.word[3];
		ctx->user_port = service->port;
	}
	return SOCKET_GO_ON;
}

static __always_inline int socket_back6(struct bpf_sock_addr *ctx)
{
	struct addr from = socket_addr6(ctx);
	struct socket_addr *service = socket_service(ctx, &from);

	if (service) {
		socket_set6(ctx, &service->addr);
		ctx->user_port = service->port;
	}
	return SOCKET_GO_ON;
}
