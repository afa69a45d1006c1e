// Package bench holds what every measurement of Kubeveil shares: the schema of
// a result, the statistics, the runner that interleaves both sides of a
// comparison, and the gates.
//
// # What it promises
//
// A figure is never compared with one taken at another time: the runner
// measures both sides of a case directly after one another, in random order,
// once a round, and the ratio is formed within the round. The medians, minima
// and maxima of a Result are over rounds. The seed of the order is printed, so
// that an order can be repeated. Nothing is left out: a measurement that fails
// ends the run with an error instead of lowering n.
//
// # The schema kubeveil.io/result/v1
//
// A result is one JSON object. Every key is always there; null means "not
// measured in this run", which is not the same as 0.
//
//	schema    "kubeveil.io/result/v1"
//	commit    git commit of the tree, with "-dirty" when it had changes; "" unknown.
//	          From veilctl, which has no tree, what veilctl version says
//	kernel    release of the kernel, as uname -r
//	cpus      CPUs the run could use
//	cpu       model of the CPU with family, model and stepping, as /proc/cpuinfo names
//	          them; "" unknown
//	go        release of Go that built the program that measured
//	memory_mib, load  the machine's memory in MiB, and its load averages at the start
//	command   what was run, with its arguments
//	aead      AEAD of the engine that was measured, "avx512" or "x/crypto"; "" in suites
//	          without one
//	platform  "namespaces"  nodes are network namespaces on one kernel
//	          "emulated"    nodes are virtual machines without hardware virtualisation
//	          "vm"          virtual machines with it
//	          "sev-snp", "tdx"  confidential virtual machines of that kind
//	          "metal"       real machines
//	started, ended  RFC 3339, UTC
//	facts     null, or what else was chosen for the run, by name. Suites of
//	          conformance: kube_proxy (its mode, or "none") and policy
//	cases     see below, sorted as they were given to the runner
//	leaks     null, or what the leak oracle saw, in frames:
//	  frames             frames looked at on our network
//	  plaintext          frames on our network that showed what they must not
//	  control_plaintext  the same on the network in clear: 0 means that the
//	                     oracle can not see, so nothing was proven
//	gates     name, want and got as text with units, ok, not_judged: the control
//	          of the run spread too much for this limit; ok is false then
//	tests     passed and failed (numbers), skipped (name and reason of each),
//	          failures (name and reason of the failed, in runs that know why)
//
// A case is one quantity:
//
//	name       words with _ between them, unique together with mtu
//	mtu        MTU of the underlay, bytes; 0 where it has no meaning
//	unit       of ours and base, one of the constants Unit…
//	ours       median, min, max over n rounds, and samples, the values in their order
//	base       the same for the other side; null when there is none
//	base_name  what the other side is; "" when there is none
//	ratio      median, min, max of ours/base, formed in each round; null without
//	           base. Whether more is better follows from the unit: see MoreIsBetter.
//
// Ratios of one run mean something everywhere. Absolute figures of the
// platforms "namespaces" and "emulated" mean nothing for real machines.
//
// Start reading at Result, then Runner. Package load measures, package report
// draws.
package bench
