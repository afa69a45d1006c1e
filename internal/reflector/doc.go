// Package reflector keeps a store like the API server's list of one kind of object. It is
// client-go's reflector, made safe against a restore of etcd and against API servers that lag.
//
// After a restore, etcd uses revisions for a second time. If a watch then continues at the revision
// that it had reached, the API server accepts the request, but sends nothing until etcd reaches
// that revision again. The watch misses all changes until then. So a broken watch continues only
// after a quorum read of one object:
//
//	watch breaks ─► head: the revision of etcd now ─┬─ not older than what is known ─► watch goes on
//	                                                └─ older, or away for long ─► new round: list
//
// Promises:
//   - Only a quorum read can take the store back to a lower revision. The first list of a round is
//     such a read, because it requests the empty revision. All other requests ask for nothing older
//     than the known revision, so a server that lags undoes no change.
//   - A watch that ends because its time is over, which is the usual end, continues without a
//     further request.
//   - Rounds, each of which begins with a list, begin at least Pause apart.
//   - If a connection breaks and the server answers, no list is needed. The watch continues at
//     once. If a watch breaks repeatedly, it continues at intervals of at least half of Pause.
//
// docs/design/0021-restored-etcd.md has the reasons. Start reading at Reflector.Run.
package reflector
