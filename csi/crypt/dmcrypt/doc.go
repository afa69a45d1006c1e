// Package dmcrypt makes the mappings of volumes: dm-crypt tables in the kernel's device-mapper, by
// ioctl.
//
// It promises:
//   - A table is made only from a verified crypt.Record or from the trusted state, never from
//     unverified data of the disk.
//   - No key is in a table, argument or log. The kernel gets keys through the keyring of a thread
//     that ends with the call.
//   - An existing mapping is compared with the expected table before it is used.
//   - It starts no program and does not wait for udev.
//
// Engine is the interface to device-mapper. Kernel implements it. Package dmcrypttest has a fake.
//
// Start reading at engine.go.
package dmcrypt
