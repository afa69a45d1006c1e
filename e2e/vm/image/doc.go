// Package image writes files for machines: images of containers without a container engine, and
// seeds, the disks with the files of one machine.
//
// Start reading at New and at Seed.
package image
