// Package storage measures volumes on a machine, beside a plain dm-linear on the same disk and
// beside stock cryptsetup with the same cipher, sectors and flags.
//
// Each disk has three partitions of one size, one for each side, so that all three share its
// limits; the sides of a quantity are measured directly after one another, in an order drawn again
// each round (package bench). Two disks are limited by qemu to what cloud disks are sold as, one is
// free. The jobs are those by which others have published: kubestr's default and Constellation's,
// and one request at a time for latency. They run on the mapping itself, without a file system
// between.
//
// It refuses to call a figure what fio did not measure, and to leave a gate unjudged. The seconds
// that a job runs are an option: the texts are otherwise as published, and the report says what was
// changed. Start reading at Run.
package storage
