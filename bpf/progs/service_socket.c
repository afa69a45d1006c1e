// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Services at the sockets of a cgroup. A socket that connects or sends to a service connects or
 * sends to a backend, so no packet is rewritten. A socket that reads its peer gets the service's
 * address.
 */
#include "service/socket.h"
/* pkg/service/bpfmaps makes all maps of the service table from this object. */
#include "service/source_range.h"

/* connect of IPv4, by TCP and UDP. */
SEC("cgroup/connect4")
int service_connect4(struct bpf_sock_addr *ctx)
{
	return socket_to_backend4(ctx, 0);
}

/* connect of IPv6, by TCP and UDP. */
SEC("cgroup/connect6")
int service_connect6(struct bpf_sock_addr *ctx)
{
	return socket_to_backend6(ctx, 0);
}

/* sendmsg of IPv4, by UDP. */
SEC("cgroup/sendmsg4")
int service_sendmsg4(struct bpf_sock_addr *ctx)
{
	return socket_to_backend4(ctx, 1);
}

/* sendmsg of IPv6, by UDP. */
SEC("cgroup/sendmsg6")
int service_sendmsg6(struct bpf_sock_addr *ctx)
{
	return socket_to_backend6(ctx, 1);
}

/* recvmsg of IPv4, by UDP. */
SEC("cgroup/recvmsg4")
int service_recvmsg4(struct bpf_sock_addr *ctx)
{
	return socket_to_service(ctx, 0);
}

/* recvmsg of IPv6, by UDP. */
SEC("cgroup/recvmsg6")
int service_recvmsg6(struct bpf_sock_addr *ctx)
{
	return socket_to_service(ctx, 1);
}

/* getpeername of IPv4. */
SEC("cgroup/getpeername4")
int service_getpeername4(struct bpf_sock_addr *ctx)
{
	return socket_to_service(ctx, 0);
}

/* getpeername of IPv6. */
SEC("cgroup/getpeername6")
int service_getpeername6(struct bpf_sock_addr *ctx)
{
	return socket_to_service(ctx, 1);
}

/* What Go asks about a UDP socket, behind 16 bytes for a frame's header, and the answer. */
struct pair_question {
	struct bpf_sock_tuple tuple; /* of a packet from the peer */
	__u32 ipv6;
	struct socket_pair pair; /* 0 if the socket has none */
};

/*
 * Returns the pair of a connected UDP socket of the link's network namespace. Nothing attaches it:
 * Go runs it with a question as the packet, since sock_diag shows the storage of TCP sockets alone.
 */
SEC("tc")
int service_pair(struct __sk_buff *skb)
{
	struct pair_question q;
	struct bpf_sock *sk;

	if (bpf_skb_load_bytes(skb, 16, &q, sizeof(q)))
		return VERDICT_NEXT;

	if (q.ipv6)
		sk = bpf_sk_lookup_udp(skb, &q.tuple, sizeof(q.tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_sk_lookup_udp(skb, &q.tuple, sizeof(q.tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return VERDICT_NEXT;

	pair_of_socket(sk, &q.pair);
	bpf_sk_release(sk);
	bpf_skb_store_bytes(skb, 16, &q, sizeof(q), 0);
	return VERDICT_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
