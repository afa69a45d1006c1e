// Package uapi reads and writes WireGuard's cross-platform configuration protocol
// (https://www.wireguard.com/xplatform/), as wg(8), wgctrl and wireguard-go speak it.
//
// Parse reads a whole "set" before the caller applies it, so that a malformed request changes
// nothing. Errors name the key of a line and never its value, which may be a private key.
//
// Start reading at Parse.
package uapi
