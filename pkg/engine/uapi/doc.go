// Package uapi reads and writes WireGuard's cross-platform configuration protocol
// (https://www.wireguard.com/xplatform/), as wg(8), wgctrl and wireguard-go speak it.
//
// Parse reads a whole "set" before anything is done with it, so that a request that cannot be met
// changes nothing. Errors name the line's key and never its value, which may be a private key.
//
// Start reading at Parse.
package uapi
