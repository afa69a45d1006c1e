// Package crypt is what stands between a volume and a disk that may lie: the LUKS2 header that
// others recognise, the sealed record that we believe, and the dm-crypt mapping that is made from
// it.
//
// It promises:
//   - What is believed of a disk was read once and verified in memory: the record authenticates
//     under a key that only this volume has, and the header is the one that the record names.
//     Everything else is a *RefusedError that says what was expected and what was found, and
//     nothing is written. The rest of the disk is encrypted and not authenticated: its owner can
//     put it back to anything that it was.
//   - A table is made from a verified Record and nothing else. Keys are in no table, argument or
//     log; the kernel gets them through the keyring of a thread.
//   - Format overwrites zeros, or what it would write itself, and nothing else; FormatCopy what the
//     copy's source had there, too.
//   - Stock cryptsetup opens what Format wrote with the RecoveryKey.
//
// It refuses to read LUKS2 headers: ours is a pure function of the key, so it is compared, never
// parsed. Volumes that cryptsetup formatted are none of ours.
//
// Engine is the seam to device-mapper; Kernel is the real one, package crypttest has a fake.
// docs/design/0005-volumes.md has the layout and its reasons.
//
// Start reading at layout.go, then record.go, metadata.go, engine.go.
package crypt
