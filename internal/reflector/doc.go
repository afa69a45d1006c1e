// Package reflector keeps a store like the API server's list of one kind of object. It is
// client-go's reflector, made safe against a restore of etcd and against API servers that lag.
//
// A restored etcd uses revisions again. A watch that goes on at the revision that it had is accepted
// by the API server, and nothing arrives until the revision has passed; what was written in between
// is never seen. So a watch that broke goes on only after a quorum read of one object:
//
//	watch breaks ─► head: the revision of etcd now ─┬─ not older than what is known ─► watch goes on
//	                                                └─ older, or away for long ─► new round: list
//
// Promises:
//   - Only a quorum read goes back. The first list is one too: it requests the empty revision. All
//     others request nothing older than the known revision, so a server that lags undoes nothing.
//   - A watch that ended because its time was over, the usual end, costs no further request.
//   - Rounds, each with a list of its own, begin at least Pause apart.
//   - A connection that breaks costs no list while the server answers. The watch goes on at once,
//     and one that breaks again and again half of Pause to Pause after it last did.
//
// docs/design/0021-restored-etcd.md has the reasons. Start reading at Reflector.Run.
package reflector
