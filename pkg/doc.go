// Package pkg holds the packages of the network, and nothing itself.
//
// There is no stable API. These packages serve the programs of this repository: names, types and
// behaviour change with any commit and without a notice. What is stable for users is documented:
// configuration keys, metrics, command lines and custom resources (docs/reference), and files on a
// node that two versions share (package abi).
//
// docs/architecture.md is the map of these packages.
package pkg
