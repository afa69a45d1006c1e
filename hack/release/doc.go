// Command release writes the folder of a release, from which Kubeveil is checked and installed:
//
//	go run ./hack/release --version v0.1.0 --key ~/.ssh/release [--name registry.example/kubeveil]
//
// It promises:
//   - The folder is of the commit that the tag names. A tree with any other file is refused, before
//     anything is written, and what is built comes from a checkout of its own.
//   - The same commit, Go version and name give the same bytes in each folder. The user's
//     environment and settings of Go's tools and of git do not matter, and a module that was changed
//     in the cache is an error. Only the signature may differ.
//   - The folder appears by one rename(2), so it is whole or absent.
//   - SHA256SUMS has every other file of the folder, also VERSION, which names the version. The
//     signature is over SHA256SUMS.
//   - The key is outside the tree. The program hands its name to ssh-keygen, and reads no more of a
//     private key than how the file begins.
//
// Each step has a line on standard error when it begins, and one with its time when it is done. The
// program publishes nothing. docs/design/0041-release.md has the decisions. Start reading at
// release.
package main
