// Package suite is the frame of all benchmarks. It measures the parts that were chosen, judges them
// and makes the report. For those that measure in network namespaces of this machine, it has the
// namespaces, cgroups, folders and processes that parts measure in.
//
//	Suite.Run ── look around ── begin ── parts ── Close ── gates.json ── Report
//	                              │        │
//	                   a Subject: a struct of the suite that embeds *Run
//
// # What it promises
//
// A part that cannot be measured is a missed gate with the reason, and the other parts are still
// measured. On other machines (Suite.Elsewhere) it is a skip. An interrupted run, and one that did not end within its limit, has a report of what was
// measured until then. Gates of parts that were not chosen are left out.
//
// What a run makes ends with this process: descriptors hold the namespaces, and programs die with
// the process. If it is killed, a cgroup, which is an empty directory, and a folder remain. The
// next run of the suite removes them.
//
// It refuses parts that the suite does not have, and runs without a round.
//
// A suite keeps what is its own: its sides, its quantities, its tables and its notes. Programs of a
// suite that are written in Go are this executable again (Child, Self).
//
// Start reading at Suite.Run, then Space, then Prefix.
package suite
