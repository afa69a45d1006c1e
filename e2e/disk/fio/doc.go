// Package fio writes job files for fio(1) and reads what it says as JSON. It runs nothing.
//
// It promises that a figure which fio did not measure is 0 or an error, never another job's. It
// refuses output without jobs and jobs that say of an error that they had. Start reading at Job.
package fio
