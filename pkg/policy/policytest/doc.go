// Package policytest has random clusters with NetworkPolicies, and an oracle that judges packets
// by the text of the API alone. It is imported by tests only.
//
// Start reading at World.
package policytest
