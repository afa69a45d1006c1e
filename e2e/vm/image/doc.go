// Package image makes container images without a container engine, seeds, which are disks with the
// files that only one machine has, and the disk that all machines of a cluster share.
//
// Start reading at New, Seed and Store.
package image
