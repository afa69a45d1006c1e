// Package conntrack keeps one pod from filling the node's table of tracked connections, and one
// other cluster. All pods of a node share the table. While it is full, the kernel drops the first
// packet of each new connection, regardless of the pod.
//
// Twice a second, a Limiter reads the number of entries of the table. Only while the number exceeds
// the limit of one pod does it read the table and count the entries that each pod opened, over both
// address families. A pod above the limit cannot open connections until its entries fall to nine
// tenths of the limit:
//
//	pod ─► conntrack (-200) ─► kubeveil_limit (-150): first packet, source in @pods4: count, drop
//
// It promises:
//   - While no pod is above the limit, connections of pods cost nothing.
//   - A pod above the limit keeps its connections, and other pods are not affected.
//   - The limit follows nf_conntrack_max.
//   - The limit stays in force after a Limiter ends, until the next Limiter has counted.
//   - A site has a limit, too, for all its addresses together, and a rate of new connections
//     (site.go). Its rules are in force while veild runs and after it.
//   - Showing the entries of each pod reads the table for at most a tenth of the time.
//
// Between two readings, a pod can open more connections than the limit allows, and a site 10,000
// per second and 10,000 at once.
//
// A Feature (feature.go) adapts the Limiter to the agent.
//
// Start reading at Limiter.step, then tracked.
package conntrack
