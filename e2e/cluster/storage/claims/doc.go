// Package claims makes the claims and pods of storage cases, and reads their state as users do.
//
// Start reading at Client, then Claim.
package claims
