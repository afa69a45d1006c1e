// Package fio writes job files for fio(1) and parses fio's JSON output. It does not run fio.
//
// A figure that fio did not measure is 0. Output without jobs, and a job that reports an error, are
// errors. Start reading at Job.
package fio
