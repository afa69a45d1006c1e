// Package conformance runs Kubernetes' own end-to-end tests against a cluster and accounts for
// every one of them. There are three suites: networking, volumes, and ClusterNetworkPolicy.
//
// # What it promises
//
// The result holds all specs of a Suite, which are those whose name begins with its Group. Each has
// passed, failed or been skipped, and each that did not pass has a reason. Each suite has one
// reviewed table of reasons (reasons.go, volumereasons.go, policyreasons.go). The table says why a
// spec is not run on a cluster like this one, or why a spec is known to fail and whose fault it is.
// A spec that skips itself states its own reason. A failure that the table does not list is in
// Report.Unexplained.
//
// The gates of the result judge a run. No failure may be unexplained, at least one spec must pass,
// and, where an oracle listened (Report.Wire), nothing of the cluster may be in clear. The report
// also lists a known failure that passes, and an entry of the table that matches the name of no
// spec, so that the table stays true.
//
// The tests belong to the upstream and are unchanged (e2e.test of the Kubernetes version of the
// lab).
// They run in several processes, each with some of the specs, because most of a spec's time is
// waiting. Specs that are marked as serial or disruptive run alone, after the others. A spec that
// fails is tried once more, alone; the first failure stays in the report.
//
// The tests of ClusterNetworkPolicy are a Go test binary, not e2e.test: policies.go runs them.
//
// # What it refuses
//
// It changes nothing about a spec: no assertion is left out, and no timeout is patched. Only the
// definition of a driver and the parameters of the upstream's suite may differ. It does not load
// images. The caller chooses whether the nodes pull the upstream's images or have the images of
// hack/conformance.
//
// Start reading at Run, then reasons.go.
package conformance
