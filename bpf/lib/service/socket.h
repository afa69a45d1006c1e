/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * NAT at sockets. The address that a socket connects or sends to becomes the address of a backend.
 * When the socket reads its peer, the backend's address becomes the address of the service.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/l4.h"
#include "service/affinity.h"
#include "service/backend.h"
#include "service/choose.h"
#include "service/count.h"
#include "service/frontend.h"
#include "service/sample_socket.h"
#include "service/socket_pair.h"

#define SOCKET_ECONNREFUSED 111

/* Verdicts of programs at sockets. */
#define SOCKET_REFUSE 0
#define SOCKET_GO_ON  1

/* Whether the kernel has bpf_set_retval (5.18). Go sets it before a program is loaded. */
volatile const __u8 has_set_retval = 1;

/*
 * The cookie of the node's own network namespace and the mark of veild's probes of API servers. Go
 * sets both before a program is loaded.
 */
volatile const __u64 host_netns;
volatile const __u32 probe_mark;

/* Counts a choice for a socket. */
static __always_inline void socket_count(enum choice choice, __u32 protocol)
{
	if (choice == CHOICE_NO_BACKEND)
		service_count(COUNT_SOCKET_REFUSED);
	else if (choice == CHOICE_UNSTEADY)
		service_count(COUNT_SOCKET_UNSTEADY);
	else
		service_count(protocol == PROTO_UDP ? COUNT_SOCKET_UDP : COUNT_SOCKET_TCP);
}

/*
 * Sets the scope of key, which a socket of the network namespace netns connects to: SCOPE_HOST if
 * there is such a frontend with backends for the socket. A probe, known by its mark, must reach the
 * server of its address.
 */
static __always_inline void socket_scope_set(
	struct bpf_sock_addr *ctx, __u64 netns, struct frontend_key *key)
{
	struct frontend *frontend;

	if (key->protocol != PROTO_TCP || netns != host_netns || !ctx->sk ||
		ctx->sk->mark & probe_mark)
		return;

	key->scope = SCOPE_HOST;
	frontend = frontend_lookup(key);
	if (!frontend || !frontend->count)
		key->scope = SCOPE_INTERNAL;
}

/*
 * Sets to to the backend that the socket's datagrams to key went to before. Returns 0 if there is
 * none, or if flows may not stay with it. While the service does not change, that takes one
 * look-up of the frontend, and a datagram that repeats the last service writes nothing. frontend is
 * scratch space.
 */
static __always_inline int socket_stays(struct bpf_sock_addr *ctx, __u64 cookie,
	const struct frontend_key *key, struct frontend *frontend, struct backend *to)
{
	struct socket_pair pair = {.service = key->addr, .service_port = key->port};
	enum pair_found found = pair_find(ctx, cookie, &pair);
	int same;

	if (found == PAIR_NONE)
		return 0;

	same = frontend_is(key, pair.revision);
	if (!same) {
		if (!frontend_has_backend(key, frontend, &pair.backend, pair.backend_port))
			return 0;
		pair.revision = frontend->revision;
	}

	to->addr = pair.backend;
	to->port = pair.backend_port;
	if (found == PAIR_KEPT || pair.flags & PAIR_DIRECT)
		pair_store(ctx, cookie, &pair, 1);
	else if (!same)
		pair_confirm(ctx, &pair);
	return 1;
}

/* Stores that the backend to of the frontend stands for the service of key at the socket. */
static __always_inline void socket_keep(struct bpf_sock_addr *ctx, __u64 cookie,
	const struct frontend_key *key, const struct frontend *frontend, const struct backend *to,
	int datagram)
{
	struct socket_pair pair = {.revision = frontend->revision,
		.service = key->addr,
		.service_port = key->port,
		.backend = to->addr,
		.backend_port = to->port};

	pair_store(ctx, cookie, &pair, datagram);
}

/*
 * Sets to to the backend for a socket that connects or sends to key, and the scope of key. datagram
 * means that the socket sends by sendmsg. Returns the choice.
 */
static __always_inline enum choice socket_choose(
	struct bpf_sock_addr *ctx, struct frontend_key *key, int datagram, struct backend *to)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct frontend frontend = {};
	enum choice choice;
	__u64 client;

	if (datagram && socket_stays(ctx, cookie, key, &frontend, to))
		return CHOICE_BACKEND;

	client = bpf_get_netns_cookie(ctx);
	socket_scope_set(ctx, client, key);
	choice = backend_choose(key, client, 0, &frontend, to);
	/* Without a backend, an address of the host's leads where it does without programs. */
	if (key->scope == SCOPE_HOST && choice != CHOICE_BACKEND)
		choice = CHOICE_NO_SERVICE;
	if (choice == CHOICE_NO_SERVICE) {
		/*
		 * A connected IPv6 socket that sends to IPv4 changes nothing: the kernel runs the
		 * program with the peer's address, as if the socket were not connected
		 * (udpv6_sendmsg in net/ipv6/udp.c).
		 */
		if (!datagram || !socket_is_connected(ctx))
			pair_forget(ctx, cookie, &key->addr, key->port);
		return choice;
	}
	socket_count(choice, key->protocol);
	if (choice != CHOICE_BACKEND) {
		sample_socket(
			choice == CHOICE_NO_BACKEND ? COUNT_SOCKET_REFUSED : COUNT_SOCKET_UNSTEADY,
			client, key);
		return choice;
	}

	affinity_remember(&frontend, client, 0, to);
	socket_keep(ctx, cookie, key, &frontend, to, datagram);
	return choice;
}

/*
 * Refuses a socket that used addr, with ECONNREFUSED. Without bpf_set_retval a refusal would
 * be EPERM. Then it sets to to the discard port of the socket's own loopback, where the kernel
 * refuses. Returns SOCKET_REFUSE or SOCKET_GO_ON.
 */
static __always_inline int socket_refuse(const struct addr *addr, struct backend *to)
{
	struct addr loopback6 = {.word = {0, 0, 0, bpf_htonl(1)}};

	if (has_set_retval) {
		bpf_set_retval(-SOCKET_ECONNREFUSED);
		return SOCKET_REFUSE;
	}

	if (is_mapped(addr))
		to->addr = addr_from_v4(bpf_htonl(0x7f000001));
	else
		to->addr = loopback6;
	to->port = bpf_htons(DISCARD_PORT);
	return SOCKET_GO_ON;
}

/* Translates the IPv4 destination of connect or sendmsg. Returns the program's verdict. */
static __always_inline int socket_to_backend4(struct bpf_sock_addr *ctx, int datagram)
{
	struct frontend_key key = {.addr = addr_from_v4(ctx->user_ip4),
		.port = ctx->user_port,
		.protocol = ctx->protocol};
	struct backend to = {};

	switch (socket_choose(ctx, &key, datagram, &to)) {
	case CHOICE_NO_SERVICE:
		return SOCKET_GO_ON;
	case CHOICE_BACKEND:
		break;
	default:
		if (socket_refuse(&key.addr, &to) == SOCKET_REFUSE)
			return SOCKET_REFUSE;
	}

	ctx->user_ip4 = to.addr.word[3];
	ctx->user_port = to.port;
	return SOCKET_GO_ON;
}

/* Returns the IPv6 address of the hook's context. */
static __always_inline struct addr socket_addr6(struct bpf_sock_addr *ctx)
{
	struct addr a = {
		.word = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};

	return a;
}

/* Sets the IPv6 address of the hook's context. */
static __always_inline void socket_set_addr6(struct bpf_sock_addr *ctx, const struct addr *a)
{
	ctx->user_ip6[0] = a->word[0];
	ctx->user_ip6[1] = a->word[1];
	ctx->user_ip6[2] = a->word[2];
	ctx->user_ip6[3] = a->word[3];
}

/* Translates the IPv6 destination of connect or sendmsg. Returns the program's verdict. */
static __always_inline int socket_to_backend6(struct bpf_sock_addr *ctx, int datagram)
{
	struct frontend_key key = {
		.addr = socket_addr6(ctx), .port = ctx->user_port, .protocol = ctx->protocol};
	struct backend to = {};

	switch (socket_choose(ctx, &key, datagram, &to)) {
	case CHOICE_NO_SERVICE:
		return SOCKET_GO_ON;
	case CHOICE_BACKEND:
		break;
	default:
		if (socket_refuse(&key.addr, &to) == SOCKET_REFUSE)
			return SOCKET_REFUSE;
	}

	socket_set_addr6(ctx, &to.addr);
	ctx->user_port = to.port;
	return SOCKET_GO_ON;
}

/*
 * Translates the peer of recvmsg or getpeername back, at a hook of IPv6 or IPv4. Returns the
 * program's verdict.
 */
static __always_inline int socket_to_service(struct bpf_sock_addr *ctx, int v6)
{
	struct addr peer = v6 ? socket_addr6(ctx) : addr_from_v4(ctx->user_ip4);
	__be16 port = ctx->user_port;

	if (!pair_service(ctx, &peer, &port))
		return SOCKET_GO_ON;

	if (v6)
		socket_set_addr6(ctx, &peer);
	else
		ctx->user_ip4 = peer.word[3];
	ctx->user_port = port;
	return SOCKET_GO_ON;
}
