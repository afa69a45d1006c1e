// Package fio writes job files for fio(1) and reads its output as JSON. It runs nothing.
//
// It promises that a figure which fio did not measure is 0 or an error, never another job's. It
// refuses output without jobs and jobs that report an error. Start reading at Job.
package fio
