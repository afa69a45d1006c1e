// Package flowtable puts known flows between pods and tunnels into flow tables of the kernel, past
// routing and the other hooks.
//
// Start reading at the drawing in flowtable.go, then at Flows.
package flowtable
