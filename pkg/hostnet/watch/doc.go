// Package watch reports what changes in the network namespace of a node: links, addresses, routes,
// rules and nftables tables, by the kernel's notifications, and without those that have no news.
//
// It changes nothing. It does not decide whether the process itself made a change; Host.Differs of
// pkg/hostnet does.
//
// Start reading at Start, then at Change, which it sends.
package watch
