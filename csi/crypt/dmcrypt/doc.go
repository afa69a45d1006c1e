// Package dmcrypt makes the mappings of volumes: dm-crypt tables in the kernel's device-mapper, by
// ioctl.
//
// It promises:
//   - A table is made only from a verified crypt.Record or from the trusted state. What the disk
//     says is not used.
//   - No key is in a table, argument or log; the kernel gets keys through the keyring of a thread
//     that ends with the call.
//   - A mapping that exists is compared with the table that it should have, before it is used.
//   - It starts no program and does not wait for udev.
//
// Engine is the interface to device-mapper; Kernel is the real one, package dmcrypttest has a fake.
//
// Start reading at engine.go.
package dmcrypt
