/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The service of a socket and the backend that stands for it. The last pair of a socket is in
 * storage of the kernel that goes with the socket. Earlier pairs of a socket that sends to several
 * services are in two LRU maps.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"

/* Go sets the sizes before a program is loaded. */
#define SOCKET_REPLIES_MAX 65536

/* linux/bpf.h: BPF_TCP_ESTABLISHED, which is the state of a connected UDP socket too. */
#define SOCKET_CONNECTED 1

/* The socket sends to the backend's own address now. So its replies keep that address. */
#define PAIR_DIRECT 1
/* The LRU maps may have other pairs of the socket. */
#define PAIR_OTHERS 2
/* The socket connected by UDP. */
#define PAIR_UDP 4

struct socket_pair {
	__u64 revision; /* of the frontend by which the backend was last found to be its member */
	struct addr service;
	struct addr backend;
	__be16 service_port;
	__be16 backend_port; /* 0 only in storage without a pair */
	__u32 flags;
};

/* Several processors may send by one socket, so the pair is read and written under a lock. */
struct socket_storage {
	struct bpf_spin_lock lock;
	struct socket_pair pair;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_storage);
} service_sockets SEC(".maps");

/* A backend in service_replies, a service in service_sends. */
struct socket_key {
	__u64 cookie; /* of the socket */
	struct addr addr;
	__be16 port;
	__u8 pad[6];
};

struct socket_reply {
	struct addr addr;
	__be16 port;
	__u8 pad[2];
};

struct socket_send {
	__u64 revision; /* as in struct socket_pair */
	struct addr addr;
	__be16 port;
	__u8 pad[6];
};

/* The service address that stands for a backend in replies, by socket and backend. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SOCKET_REPLIES_MAX);
	__type(key, struct socket_key);
	__type(value, struct socket_reply);
} service_replies SEC(".maps");

/* The backend of the datagrams of an unconnected socket, by socket and service. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SOCKET_REPLIES_MAX);
	__type(key, struct socket_key);
	__type(value, struct socket_send);
} service_sends SEC(".maps");

/* Returns the storage of the socket, or NULL. flags may make the storage, if there is memory. */
static __always_inline struct socket_storage *socket_storage_get(
	struct bpf_sock_addr *ctx, __u64 flags)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_sk_storage_get(&service_sockets, sk, NULL, flags) : NULL;
}

/* Reports whether the UDP socket of a sendmsg is connected. */
static __always_inline int socket_is_connected(struct bpf_sock_addr *ctx)
{
	return ctx->sk && ctx->sk->state == SOCKET_CONNECTED;
}

/* Stores in service_replies which service a backend stands for, unless it is there. */
static __always_inline void reply_keep(__u64 cookie, const struct socket_pair *pair)
{
	struct socket_key from = {
		.cookie = cookie, .addr = pair->backend, .port = pair->backend_port};
	struct socket_reply now = {.addr = pair->service, .port = pair->service_port};
	struct socket_reply *reply = bpf_map_lookup_elem(&service_replies, &from);

	if (!reply || reply->port != now.port || !same_addr(&reply->addr, &now.addr))
		bpf_map_update_elem(&service_replies, &from, &now, BPF_ANY);
}

/* Deletes what service_replies has for a backend. */
static __always_inline void reply_delete(__u64 cookie, const struct addr *addr, __be16 port)
{
	struct socket_key from = {.cookie = cookie, .addr = *addr, .port = port};

	/* The look-up comes first, since a delete takes a lock. */
	if (bpf_map_lookup_elem(&service_replies, &from))
		bpf_map_delete_elem(&service_replies, &from);
}

/* Stores in service_sends which backend a service has for the socket, unless it is there. */
static __always_inline void send_keep(__u64 cookie, const struct socket_pair *pair)
{
	struct socket_key to = {
		.cookie = cookie, .addr = pair->service, .port = pair->service_port};
	struct socket_send now = {
		.revision = pair->revision, .addr = pair->backend, .port = pair->backend_port};
	struct socket_send *send = bpf_map_lookup_elem(&service_sends, &to);

	if (!send || send->revision != now.revision || send->port != now.port ||
		!same_addr(&send->addr, &now.addr))
		bpf_map_update_elem(&service_sends, &to, &now, BPF_ANY);
}

/*
 * Stores a pair in the LRU maps, unless they have it. Datagrams do not look for the pair of a
 * connect.
 */
static __noinline void pair_keep(__u64 cookie, const struct socket_pair *pair)
{
	if (!(pair->flags & PAIR_UDP))
		send_keep(cookie, pair);
	if (!(pair->flags & PAIR_DIRECT))
		reply_keep(cookie, pair);
}

/* Copies the pair of the storage s, which may be NULL. Returns 0 if there is no pair. */
static __always_inline int pair_read(struct socket_storage *s, struct socket_pair *to)
{
	if (!s)
		return 0;

	bpf_spin_lock(&s->lock);
	*to = s->pair;
	bpf_spin_unlock(&s->lock);
	return to->backend_port != 0;
}

/*
 * Makes pair the last pair of a UDP socket, which connects if flags has PAIR_UDP. The former pair
 * is kept: before it leaves the storage, so that its replies always find it, and again if another
 * processor stored a pair meanwhile.
 */
static __always_inline void pair_remember(
	struct socket_storage *s, __u64 cookie, struct socket_pair *pair, __u32 flags)
{
	struct socket_pair former;

	if (pair_read(s, &former))
		pair_keep(cookie, &former);

	bpf_spin_lock(&s->lock);
	former = s->pair;
	pair->flags = former.backend_port ? flags | PAIR_OTHERS : flags;
	s->pair = *pair;
	bpf_spin_unlock(&s->lock);

	if (former.backend_port)
		pair_keep(cookie, &former);
}

/* Sets the revision of the socket's last pair, if that is still pair. */
static __always_inline void pair_confirm(struct bpf_sock_addr *ctx, const struct socket_pair *pair)
{
	struct socket_storage *s = socket_storage_get(ctx, 0);

	if (!s)
		return;

	bpf_spin_lock(&s->lock);
	if (s->pair.backend_port == pair->backend_port &&
		s->pair.service_port == pair->service_port &&
		same_addr(&s->pair.backend, &pair->backend) &&
		same_addr(&s->pair.service, &pair->service))
		s->pair.revision = pair->revision;
	bpf_spin_unlock(&s->lock);
}

/*
 * Stores the pair of a socket that connects, or sends a datagram. A datagram of a connected socket
 * leaves the storage as it is, because that has the pair of the peer.
 */
static __always_inline void pair_store(
	struct bpf_sock_addr *ctx, __u64 cookie, struct socket_pair *pair, int datagram)
{
	struct socket_storage *s = NULL;

	if (!datagram || !socket_is_connected(ctx))
		s = socket_storage_get(ctx, BPF_SK_STORAGE_GET_F_CREATE);

	if (!s) {
		pair_keep(cookie, pair);
	} else if (ctx->protocol == PROTO_UDP) {
		pair_remember(s, cookie, pair, datagram ? 0 : PAIR_UDP);
	} else {
		bpf_spin_lock(&s->lock);
		s->pair = *pair;
		bpf_spin_unlock(&s->lock);
	}
}

/* What pair_find returns. */
enum pair_found {
	PAIR_NONE,
	PAIR_LAST, /* the last pair of the socket */
	PAIR_KEPT  /* a pair of the LRU maps */
};

/*
 * Looks for the pair of the socket for the service of pair. Sets the backend and the flags of pair.
 * It changes no map.
 */
static __always_inline enum pair_found pair_find(
	struct bpf_sock_addr *ctx, __u64 cookie, struct socket_pair *pair)
{
	struct socket_key at = {
		.cookie = cookie, .addr = pair->service, .port = pair->service_port};
	struct socket_pair last;
	struct socket_send *send;

	if (pair_read(socket_storage_get(ctx, 0), &last) &&
		last.service_port == pair->service_port &&
		same_addr(&last.service, &pair->service)) {
		*pair = last;
		return PAIR_LAST;
	}

	send = bpf_map_lookup_elem(&service_sends, &at);
	if (!send)
		return PAIR_NONE;

	pair->revision = send->revision;
	pair->backend = send->addr;
	pair->backend_port = send->port;
	return PAIR_KEPT;
}

/*
 * Forgets that replies from addr and port come from a service: the socket now sends there itself.
 */
static __always_inline void pair_forget(
	struct bpf_sock_addr *ctx, __u64 cookie, const struct addr *addr, __be16 port)
{
	struct socket_storage *s = socket_storage_get(ctx, 0);
	__u32 flags = PAIR_OTHERS;

	if (s) {
		bpf_spin_lock(&s->lock);
		if (s->pair.backend_port == port && same_addr(&s->pair.backend, addr))
			s->pair.flags |= PAIR_DIRECT;
		flags = s->pair.flags;
		bpf_spin_unlock(&s->lock);
	}

	if (flags & PAIR_OTHERS)
		reply_delete(cookie, addr, port);
}

/*
 * Replaces addr and port, a peer of the socket, by the service that it stands for. Returns 0 if
 * there is none.
 */
static __always_inline int pair_service(struct bpf_sock_addr *ctx, struct addr *addr, __be16 *port)
{
	struct socket_key from = {
		.cookie = bpf_get_socket_cookie(ctx), .addr = *addr, .port = *port};
	struct socket_reply *reply;
	struct socket_pair last;

	if (pair_read(socket_storage_get(ctx, 0), &last)) {
		if (last.backend_port == *port && same_addr(&last.backend, addr)) {
			*addr = last.service;
			*port = last.service_port;
			return !(last.flags & PAIR_DIRECT);
		}
		if (!(last.flags & PAIR_OTHERS))
			return 0;
	}

	reply = bpf_map_lookup_elem(&service_replies, &from);
	if (!reply)
		return 0;

	*addr = reply->addr;
	*port = reply->port;
	return 1;
}

/* Copies the pair of a socket, which the caller holds. Returns 0 if there is none. */
static __always_inline int pair_of_socket(struct bpf_sock *sk, struct socket_pair *to)
{
	return pair_read(bpf_sk_storage_get(&service_sockets, sk, NULL, 0), to);
}
