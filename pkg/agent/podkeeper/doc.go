// Package podkeeper keeps the pods of a node as their records describe them, on a goroutine of its
// own, so that peers never wait behind pods.
//
// It begins only once the guard is in force: no pod becomes reachable before it is judged.
//
// Start reading at Keeper.
package podkeeper
