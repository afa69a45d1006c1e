// Package podkeeper keeps the pods of a node as their records describe them, on a goroutine of its
// own, so that peers never wait behind pods.
//
// It starts its work only when the guard is in force, so that no pod is reachable without the
// guard.
//
// Start reading at Keeper.
package podkeeper
