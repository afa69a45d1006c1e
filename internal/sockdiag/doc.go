// Package sockdiag lists and closes other processes' connected sockets by sock_diag(7). It closes
// sockets connected to an address that no host has any longer, to which nothing may be sent any
// longer, or whose host is silent.
//
// It works on the calling thread's network namespace. To close sockets, it needs CAP_NET_ADMIN
// there and a kernel with CONFIG_INET_DIAG_DESTROY (4.5). A program whose socket is closed gets ECONNABORTED from its
// system call. The kernel selects sockets by their remote address, so for other sockets the only
// cost is that the kernel walks its table.
package sockdiag
