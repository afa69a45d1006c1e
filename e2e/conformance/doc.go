// Package conformance runs Kubernetes' own end-to-end tests of networking, those of volumes, or
// those of ClusterNetworkPolicy against a cluster and accounts for every one of them.
//
// # What it promises
//
// All specs of a Suite, those whose name begins with its Group, are in the result: each has passed,
// failed or been skipped, and each that did not pass has a reason. The reasons are one reviewed
// table for each suite (reasons.go, volumereasons.go, policyreasons.go): why a spec is not run on a
// cluster like this one, and why one that is run is known to fail, with whose fault that is. A spec
// that skips itself gives its own reason. What fails and is not in the table has failed for no
// known reason, and Report.Unexplained has it. A run is judged by the gates of its result: nothing
// of that kind, something that passed and, where an oracle listened (Report.Wire), nothing of the
// cluster in clear. A known failure that passes is told as well, and so is an entry of the table
// that no spec's name matches, so that the table does not rot.
//
// The tests are the upstream's, unchanged (e2e.test of the Kubernetes version that the lab runs).
// They are started in several processes, each with some of the specs, because most of a spec's time
// is waiting; specs that are marked as serial or disruptive run alone, after the others. A spec
// that fails is tried once more, alone; the first failure stays in the report.
//
// The tests of ClusterNetworkPolicy are a Go test binary, not e2e.test: policies.go runs them.
//
// # What it refuses
//
// It changes nothing about a spec: no assertion is left out, and no timeout is patched, but for
// what the definition of a driver or a parameter of the upstream's suite may say. It does not load
// images: the caller says whether the nodes can pull the upstream's or have those of
// hack/conformance.
//
// Start reading at Run, then reasons.go.
package conformance
