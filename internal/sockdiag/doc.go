// Package sockdiag closes other processes' sockets by sock_diag(7), where they are connected to an
// address that no host has any more, or to which nothing may be sent any more.
//
// It works on the calling thread's network namespace, and needs CAP_NET_ADMIN there and a kernel
// with CONFIG_INET_DIAG_DESTROY (4.5). A program whose socket is closed gets ECONNABORTED from what
// it waits in.
package sockdiag
