// Package servicenode runs what veild runs for services on a node: the client that reads Services
// and EndpointSlices, the planner, and the writer of the BPF maps. Its programs are not attached,
// so it changes no traffic.
//
//	API server ─► kube.Client ─► keeper.Keeper ─► bpfmaps.Table ─► Config.Wrote
//
// It promises that all of its state is below Config.Dir, in a BPF file system, and in its memory.
// The maps stay there when the process ends, however it ends, and Open adopts them.
//
// Start reading at Open. Content in content.go reads the maps of any process by their pins.
package servicenode
