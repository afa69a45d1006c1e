// Package image makes container images without a container engine, and seeds: disks with the files
// that only one machine has.
//
// Start reading at New and at Seed.
package image
