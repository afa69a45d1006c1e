// Package crypt protects a volume from a disk that may lie. It reads and writes the volume's
// metadata on the disk: the LUKS2 header, which other tools recognize, and the sealed record, which
// this package trusts after verification. Package dmcrypt makes the mapping from that record.
//
// It promises:
//   - Metadata is read once and verified in memory before it is trusted. The record must
//     authenticate under a key that only this volume has, and the header must have the digest in
//     the record. Any other disk is a *RefusedError with the expected and the found value, and
//     nothing is written. The rest of the disk is encrypted but not authenticated: its owner can
//     restore any former content.
//   - Format overwrites only zeros, or the bytes that it would write. FormatCopy also overwrites
//     the metadata of the copy's source.
//   - Stock cryptsetup can open a formatted disk with the RecoveryKey.
//
// It never parses LUKS2 headers. The header is a pure function of the key, so it is compared.
// Volumes that cryptsetup formatted are refused.
//
// docs/design/0005-volumes.md has the layout and its reasons.
//
// Start reading at layout.go, then record.go, metadata.go, format.go.
package crypt
