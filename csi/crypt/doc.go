// Package crypt protects a volume from a disk that may lie. It has the LUKS2 header, which other
// tools recognize, and the sealed record, which we trust. Package dmcrypt makes the mapping from
// that record.
//
// It promises:
//   - Metadata is read once and verified in memory before it is trusted. The record authenticates
//     under a key that only this volume has, and the header has the digest in the record.
//     Everything else is a *RefusedError with the expected and the found value, and
//     nothing is written. The rest of the disk is encrypted and not authenticated: its owner can
//     restore any former content.
//   - Format overwrites only zeros, or what it would write itself. FormatCopy also overwrites the
//     metadata of the copy's source.
//   - Stock cryptsetup opens what Format wrote with the RecoveryKey.
//
// It never parses LUKS2 headers: ours is a pure function of the key, so it is compared. Volumes
// that cryptsetup formatted are refused.
//
// docs/design/0005-volumes.md has the layout and its reasons.
//
// Start reading at layout.go, then record.go, metadata.go, format.go.
package crypt
