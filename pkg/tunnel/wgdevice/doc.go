// Package wgdevice makes, reads, configures and removes the WireGuard devices of this machine: the
// kernel's, and those of veil-wg. Host is the tunnel.System of a node.
//
// It promises:
//   - A new device is a kernel WireGuard device if the kernel supports it. Otherwise veil-wg makes
//     a TUN device. An existing device of either kind is kept, so that no session is lost.
//   - A reading of a device does not keep the private key.
//   - It removes only devices whose name and link group are ours.
//
// It returns an error if a link of another type has the name of a device.
//
// socket.go has the requests to veil-wg that extend WireGuard's configuration protocol. Start
// reading at Host.Create.
package wgdevice
