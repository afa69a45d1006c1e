// Package storage measures volumes on a machine, beside a plain dm-linear on the same disk and
// beside stock cryptsetup with the same cipher, sectors and flags.
//
// Each disk has three partitions of equal size, one for each side, so that all sides share the
// disk's limits. The sides of a quantity are measured directly after one another, in random order
// (package bench). qemu limits two disks to the performance of common cloud disks; one disk has no
// limit. The jobs are kubestr's default and Constellation's, which have published figures, and jobs
// with one request at a time for latency. They run on the device mapping itself, without a file
// system.
//
// It returns an error instead of a figure that fio did not measure, and judges every gate. The
// duration of a job is an option. The job files are otherwise as published, and the report lists
// the changes. Start reading at Run.
package storage
