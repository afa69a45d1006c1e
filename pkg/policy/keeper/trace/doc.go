// Package trace answers whether a connection is allowed: it judges the connection by the plan in
// force and by the kernel's table, compares both, and says which policies decide.
//
// Start reading at Judge.Trace.
package trace
