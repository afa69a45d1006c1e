// Package rtnetlink queries routes of the kernel, and reads the messages of its netlink sockets:
// many destinations in one system call, dumps filtered by the kernel, and replies parsed in place.
// With a thousand peers, the general netlink library would take as long as a whole turn of the
// agent may take.
//
// It changes nothing in the kernel: pkg/hostnet does.
//
// Start reading at Socket, then at Route.
package rtnetlink
