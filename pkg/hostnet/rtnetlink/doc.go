// Package rtnetlink queries routes of the kernel, and reads the messages of its netlink sockets:
// many destinations in one system call, dumps filtered by the kernel, and replies parsed in place.
// The general library takes as long for a thousand peers as a whole turn of the agent may.
//
// It changes nothing in the kernel: pkg/hostnet does.
//
// Start reading at Socket; Route is what it finds.
package rtnetlink
