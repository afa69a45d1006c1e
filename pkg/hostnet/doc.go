// Package hostnet makes this node's routing match what is believed: policy
// rules, routes into tunnels and the `unreachable` routes beneath them, the
// settings of tunnel devices, forwarding, masquerading, and outer packets that stay whole.
//
// It promises:
//
//   - Closed by default. Every cluster range, service range and node address always has an
//     `unreachable` route. A route into a tunnel is added with a better metric, and does not
//     replace it. When a tunnel route disappears, because a peer was removed, a device went down or
//     another program flushed it, packets are refused and never leave by the underlay. This holds
//     after each single Op that Diff returns, not only after the last.
//   - Outer packets (TunnelMark) never enter a tunnel, even when a peer's
//     endpoint lies inside a pod prefix.
//   - Outer packets are never fragmented (pkg/hostnet/tables).
//   - Nothing of other owners is changed or deleted. Kubeveil owns routes of protocol
//     RouteProtoNode in main and in TablePod, rules with its preference and mark, and the nft
//     tables NFTNatTable, NFTOuterTable, NFTFlowTableTCP and NFTFlowTableUDP. If a route of another
//     owner has the identity of a wanted route, Apply returns an error.
//   - Applying twice changes nothing the second time. A change of one peer changes only that peer's
//     routes.
//
// It does not make or delete devices (pkg/tunnel does) and does not decide which nodes to believe
// (pkg/cluster does).
//
// # Surprising behaviour of the kernel
//
//	a link goes down             routes over it vanish: IPv4 without a message,
//	                             so watch.Start listens to links as well
//	lo goes down                 the IPv6 unreachable routes, which live on lo, vanish
//	an address is removed        IPv4 routes that prefer it as source vanish,
//	                             IPv6 routes silently lose the preference
//	an IPv6 address is tentative it cannot be preferred yet, so Apply fails;
//	                             watch reports when the address is ready
//	a device's MTU changes       the MTU of IPv6 routes over it changes too, unless
//	                             it is locked, as those of Kubeveil are
//	a route has a metric         it is part of the route's identity (table, prefix,
//	                             metric), so routes of other programs with lower
//	                             metrics are never replaced
//
// A tunnel device needs no address: IPv4 and IPv6 routes in main name the
// node's own address as preferred source, and TUN and WireGuard devices have no
// neighbours to resolve.
//
// # Forwarding
//
// net.ipv4.ip_forward and net.ipv6.conf.all.forwarding are set to 1 for the families of the cluster
// ranges when they are 0. Remove keeps them, because other programs may rely on them by then. When
// IPv6 forwarding is enabled, the kernel removes default routes learned from router advertisements
// on links with accept_ra=1. So accept_ra of these links, and no others, is set to 2 first.
//
// # Reflected marks
//
// Want.ReflectMarks enables net.ipv4.fwmark_reflect and net.ipv6.fwmark_reflect, for the same
// families. The kernel's own replies to a packet with PodMark then use TablePod, like the packets
// of pods. Routes into tunnels in this table get this node's address as preferred source. Otherwise
// a reply could have another source, which peers refuse from the tunnel. A setting of 0 becomes
// reflectOurs. It becomes 0 again on Remove, and when it is not wanted any more. Another value is
// not changed.
//
// Start reading at Plan, then Diff. Host reads and changes the kernel, and Host.Sync combines all
// steps.
package hostnet
