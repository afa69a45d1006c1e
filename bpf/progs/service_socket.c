// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Services at the sockets of a cgroup: where a socket connects or sends to a service, it connects
 * or sends to a backend, so that no packet is rewritten; what it asks about its peer is answered
 * with the service's address.
 */
#include "socket.h"

SEC("cgroup/connect4")
int service_connect4(struct bpf_sock_addr *ctx)
{
	return socket_out4(ctx, 0);
}

SEC("cgroup/connect6")
int service_connect6(struct bpf_sock_addr *ctx)
{
	return socket_out6(ctx, 0);
}

SEC("cgroup/sendmsg4")
int service_sendmsg4(struct bpf_sock_addr *ctx)
{
	return socket_out4(ctx, 1);
}

SEC("cgroup/sendmsg6")
int service_sendmsg6(struct bpf_sock_addr *ctx)
{
	return socket_out6(ctx, 1);
}

SEC("cgroup/recvmsg4")
int service_recvmsg4(struct bpf_sock_addr *ctx)
{
	return socket_back4(ctx);
}

SEC("cgroup/recvmsg6")
int service_recvmsg6(struct bpf_sock_addr *ctx)
{
	return socket_back6(ctx);
}

SEC("cgroup/getpeername4")
int service_getpeername4(struct bpf_sock_addr *ctx)
{
	return socket_back4(ctx);
}

SEC("cgroup/getpeername6")
int service_getpeername6(struct bpf_sock_addr *ctx)
{
	return socket_back6(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
