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
	return socket_to_service4(ctx);
}

/* recvmsg of IPv6, by UDP. */
SEC("cgroup/recvmsg6")
int service_recvmsg6(struct bpf_sock_addr *ctx)
{
	return socket_to_service6(ctx);
}

/* getpeername of IPv4. */
SEC("cgroup/getpeername4")
int service_getpeername4(struct bpf_sock_addr *ctx)
{
	return socket_to_service4(ctx);
}

/* getpeername of IPv6. */
SEC("cgroup/getpeername6")
int service_getpeername6(struct bpf_sock_addr *ctx)
{
	return socket_to_service6(ctx);
}

/* The program of a socket closes it. */
SEC("cgroup/sock_release")
int service_release(struct bpf_sock *sk)
{
	pair_release(sk);
	return SOCKET_GO_ON;
}

char _license[] SEC("license") = "Dual BSD/GPL";
