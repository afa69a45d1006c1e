// Package veilnode is the format of a VeilNode, Kubeveil's custom resource: its spec is the claim
// of a node. manifests/crd has its schema, which allows no more than Decode does.
//
// If a known field is malformed, the whole claim is refused. Fields and features of a later version
// are ignored. Start reading at Decode.
package veilnode
