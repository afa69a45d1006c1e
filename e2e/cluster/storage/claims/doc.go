// Package claims makes the claims and pods of storage cases, and reads the state of both as its
// users do.
//
// Start reading at Client, then Claim.
package claims
