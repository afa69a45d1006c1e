// Package device reads and changes the settings of tunnel devices: MTU, link group, queue length,
// reverse path filter, address, and whether the device is up.
//
// It promises:
//   - The group is set first, because the guard and routing rules recognize the device by it. The
//     device is set up last.
//   - Only settings that differ are written.
//
// It does not make or delete devices (pkg/tunnel does).
//
// Start reading at Settings.
package device
