// Package watch reports what changes in the network namespace of a node: links, addresses, routes,
// rules and nftables tables, by the kernel's notifications, and without those that have no news.
//
// It changes nothing, and does not judge whether the process itself made a change: Host.Differs of
// pkg/hostnet does.
//
// Start reading at Start; Change is what it sends.
package watch
