// Package trial compares two plans of a node by the connections that are known, without putting
// either in force. It is pure: it reads no kernel and changes nothing.
//
//	plan in force ───┐
//	                 ├─► Trial ◄── known connections, last drops
//	plan to try ─────┘     └─► Result: what would end, what would pass
//
// It promises:
//   - A known connection is judged as the keeper of policies judges it when the plan comes in
//     force, by the same function. So the prediction is what then happens.
//   - The Result is bounded: it has MaxRows rows per pod. Connections beyond them are counted in a
//     row of the pod with the peer Others.
//   - A peer at a pod's address is marked as unknown unless it is known which pod has the address.
//
// A packet that was dropped passes if the plan to try allows it. It does not count if the plan in
// force allows it too: policies have changed since.
//
// Start reading at Trial.Known, then Trial.Dropped.
package trial
