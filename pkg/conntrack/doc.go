// Package conntrack keeps one pod from filling the node's table of tracked connections. All pods of
// a node share the table, and while it is full the kernel drops what opens a connection, of every
// pod.
//
// A Limiter reads how many entries the table has, which is one number, twice a second. Only while
// that is more than one pod may open, it reads the table and counts the entries that each pod
// opened, in both address families together. A pod beyond the limit opens no more until it is below
// nine tenths of it:
//
//	pod ─► conntrack (-200) ─► kubeveil_limit (-150): first packet, source in @pods4: count, drop
//
// It promises:
//   - Without a pod beyond the limit there is no table and no rule: a connection costs nothing.
//   - A pod beyond it loses no connection that it has, and no other pod loses anything.
//   - The limit follows nf_conntrack_max.
//   - It stays in force while no Limiter runs, and until the next one has counted.
//   - What the pods opened is shown without reading the table more than a tenth of the time.
//
// Between two readings a pod may exceed the limit by what it opens in that time.
//
// A Feature (feature.go) is the Limiter as the agent drives it.
//
// Start reading at Limiter.step, then tracked.
package conntrack
