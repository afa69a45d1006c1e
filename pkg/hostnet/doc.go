// Package hostnet makes this node's routing match what is believed: policy
// rules, routes into tunnels and the `unreachable` routes beneath them, the
// settings of tunnel devices, forwarding, masquerading, and outer packets that stay whole.
//
// It promises:
//
//   - Closed by default. Every cluster range, service range and node address has
//     an `unreachable` route beneath it, always: a route into a tunnel lies over
//     it with a better metric and never takes its place. When a tunnel route
//     disappears, because a peer was removed, a device went down or another program flushed it,
//     the packet is refused; it never falls through to the underlay. This holds after
//     each single Op that Diff returns, not only after the last.
//   - Outer packets (TunnelMark) never enter a tunnel, even when a peer's
//     endpoint lies inside a pod prefix.
//   - Outer packets are never fragmented (pkg/hostnet/tables).
//   - Nothing of others is changed or deleted. Ours are routes of protocol RouteProtoNode in main
//     and in TablePod, rules with our preference and mark, and the nft tables NFTNatTable,
//     NFTOuterTable, NFTFlowTableTCP and NFTFlowTableUDP. A route of another owner in a place that
//     we need is an error, not replaced.
//   - Applying twice changes nothing, and one changed peer touches only that
//     peer's routes.
//
// It refuses to make or delete devices (pkg/tunnel does) and to decide which nodes to
// believe (pkg/cluster does).
//
// # Surprising behaviour of the kernel
//
//	a link goes down             routes over it vanish: IPv4 without a message,
//	                             so watch.Start listens to links as well
//	lo goes down                 the IPv6 unreachable routes, which live on lo, vanish
//	an address is removed        IPv4 routes that prefer it as source vanish,
//	                             IPv6 routes silently lose the preference
//	an IPv6 address is tentative it cannot be preferred yet: Apply fails, watch
//	                             wakes when it is ready
//	a device's MTU changes       IPv6 routes over it follow if their own MTU is at
//	                             least as large, or was the device's MTU; Diff
//	                             reckons with it
//	the route's metric           is part of a route's identity (table, prefix,
//	                             metric), so ours never meet routes of a lower one
//
// A tunnel device needs no address: IPv4 and IPv6 routes in main name the
// node's own address as preferred source, and TUN and WireGuard devices have no
// neighbours to resolve.
//
// # Forwarding
//
// net.ipv4.ip_forward and net.ipv6.conf.all.forwarding are set to 1 for the
// families of the cluster ranges when they are 0. They stay 1 on Remove: others
// may have come to rely on them. IPv6 forwarding makes the kernel forget default
// routes learned from router advertisements on links with accept_ra=1; such
// links, and only those, are set to accept_ra=2 before it.
//
// # Reflected marks
//
// With Want.ReflectMarks net.ipv4.fwmark_reflect and net.ipv6.fwmark_reflect are on, for the same
// families: to a packet with PodMark the kernel's own answers go by TablePod, like the packets of
// pods. Routes into tunnels there then prefer this node's address as source, or the answer might
// have another, which peers do not take from the tunnel. Where a setting is 0 it becomes
// reflectOurs, and 0 again when it is not wanted, and on Remove; another value stays as it is.
//
// Start reading at Plan, then Diff; Host is the kernel, and Host.Sync does all of it.
package hostnet
