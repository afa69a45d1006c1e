// Package chains plans the nftables tables of the guard. The tables do not depend on links, so they
// also cover the moment until a new link has its BPF programs.
//
// The table NFTGuardTable drops packets of the cluster that would leave in clear. It also keeps the
// replies of nodes to pods inside tunnels (translate.go) and refuses pods' connections without a
// route (tcp.go). The table NFTPodTable marks packets from pods and drops forged ones (pods.go).
// A packet's input link decides its owner, regardless of a mark that another program set
// (origin.go). Tunnel datagrams are accepted from listed addresses of nodes only (datagram.go).
// Sites reach exported endpoints only (site.go).
// Each reason to drop has a chain that counts packets and samples some (drop.go).
//
// The package is pure: package guard compares what it plans with the kernel's tables, and writes
// the difference. The chains depend only on the version and on the number of sites, and Settings
// fill the sets.
//
// Start with Settings.Table in settings.go, then chains in table.go.
package chains
