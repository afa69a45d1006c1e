// Package mirrored finds and removes the objects that a cluster has of another one: SiteNodes,
// ServiceImports with their derived Services, EndpointSlices, and the SiteLink. veil-site
// (pkg/site) writes them. It deletes no object that veil-site did not write.
package mirrored
