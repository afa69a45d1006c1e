// Package bench holds what every measurement of Kubeveil shares: the schema of
// a result, the statistics, the runner that interleaves both sides of a
// comparison, and the gates.
//
// # What it promises
//
// Figures of different times are never compared. In each round the runner measures both sides of a
// case directly after one another, in random order, and the ratio is formed within the round. The
// medians, minima and maxima of a Result are taken over the rounds. The seed of the order is
// printed, so that an order can be repeated. A measurement that fails ends the run with an error;
// its round is never left out to get a result.
//
// # The schema kubeveil.io/result/v1
//
// A result is one JSON object. Every key is always there; null means "not
// measured in this run", which is not the same as 0.
//
//	schema    "kubeveil.io/result/v1"
//	commit    git commit of the tree, with "-dirty" when it had changes; "" unknown.
//	          In results of veilctl, which has no tree: the commit that veilctl version prints
//	kernel    release of the kernel, as uname -r
//	cpus      CPUs the run could use
//	cpu       model of the CPU with family, model and stepping, as /proc/cpuinfo names
//	          them; "" unknown
//	go        release of Go that built the measuring program
//	memory_mib, load  the machine's memory in MiB, and its load averages at the start
//	command   the measuring program with its arguments
//	aead      AEAD of the engine that was measured, "avx512" or "x/crypto"; "" in suites
//	          without one
//	platform  "namespaces"  nodes are network namespaces on one kernel
//	          "emulated"    nodes are virtual machines without hardware virtualisation
//	          "vm"          virtual machines with it
//	          "sev-snp", "tdx"  confidential virtual machines of that kind
//	          "metal"       real machines
//	started, ended  RFC 3339, UTC
//	facts     null, or the other choices of the run, by name. Conformance suites set
//	          kube_proxy (its mode, or "none") and policy
//	cases     see below, in the order in which the runner received them
//	leaks     null, or the counts of the leak oracle, in frames:
//	  frames             frames inspected on our network
//	  plaintext          frames on our network that contained plaintext
//	  control_plaintext  frames with plaintext on the network in clear. 0 means that
//	                     the oracle does not detect plaintext, so nothing was proven
//	gates     name, want and got as text with units, ok, not_judged. not_judged means
//	          that the run was too noisy for this limit; ok is false then
//	tests     passed and failed (numbers), skipped (name and reason of each), failures
//	          (name and reason of each failed test, in runs that record reasons)
//
// A case is one quantity:
//
//	name       words with _ between them, unique together with mtu
//	mtu        MTU of the underlay, bytes; 0 where it has no meaning
//	unit       of ours and base, one of the constants Unit…
//	ours       median, min, max over n rounds, and samples, the values in their order
//	base       the same for the other side; null without another side
//	base_name  the name of the other side; "" without another side
//	ratio      median, min, max of ours/base, formed in each round; null without
//	           base. The unit decides whether more is better: see MoreIsBetter.
//
// Ratios of one run are valid on every platform. Absolute figures of the platforms "namespaces" and
// "emulated" do not apply to real machines.
//
// Start reading at Result, then Runner. Package load measures traffic; package report writes the
// reports.
package bench
