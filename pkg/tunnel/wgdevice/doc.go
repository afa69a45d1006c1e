// Package wgdevice makes, reads, configures and removes the WireGuard devices of this machine: the
// kernel's, and those of veil-wg. Host is the tunnel.System of a node.
//
// It promises:
//   - The kernel's WireGuard is used where it can be made. Otherwise veil-wg makes a TUN. An
//     existing device is kept regardless of its kind, so that nothing is lost.
//   - No private key is kept from a reading of a device.
//   - It removes only devices whose name and link group are ours.
//
// It refuses a device's name that belongs to a link of another type.
//
// socket.go has the requests to veil-wg that the protocol of WireGuard lacks. Start reading at
// Host.Create.
package wgdevice
