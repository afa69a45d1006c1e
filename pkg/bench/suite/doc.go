// Package suite is the frame of all benchmarks. It measures the parts that were chosen, judges them
// and makes the report. For benchmarks that measure on this machine, it also makes their network
// namespaces, cgroups, folders and processes.
//
//	Suite.Run ── look around ── begin ── parts ── Close ── gates.json ── Report
//	                              │        │
//	                   a Subject: a struct of the suite that embeds *Run
//
// # What it promises
//
// A part that cannot be measured becomes a missed gate with the reason, or a skip if the suite
// measures other machines (Suite.Elsewhere). The other parts are still measured. A run that is
// interrupted or reaches its limit has a report of what was measured until then. Gates of parts
// that were not chosen are left out.
//
// Everything that a run makes ends with this process: descriptors hold the namespaces, and programs
// die with the process. If the process is killed, an empty cgroup directory and a folder remain.
// The next run of the suite removes them.
//
// It refuses parts that the suite does not have, and runs with less than one round.
//
// Each suite has its own sides, quantities, tables and notes. Programs of a suite that are written
// in Go are child processes of the same executable (Child, Self).
//
// Start reading at Suite.Run, then Space, then Prefix.
package suite
