// Package storage measures volumes on a machine, beside a plain dm-linear on the same disk and
// beside stock cryptsetup with the same cipher, sectors and flags.
//
// Each disk has three partitions of one size, one for each side, so that all three share its
// limits; the sides of a quantity are measured directly after one another, in an order drawn again
// each round (package bench). qemu limits two disks to the performance of common cloud disks; one
// disk has no limit. The jobs are the ones with published figures, kubestr's default and
// Constellation's, and one request at a time for latency. They run on the mapping itself, without a
// file system between.
//
// It refuses to report a figure that fio did not measure, and to leave a gate unjudged. The
// duration of a job is an option. The job files are otherwise as published, and the report lists
// the changes. Start reading at Run.
package storage
