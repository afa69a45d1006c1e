// Package conformance runs Kubernetes' own end-to-end tests against a cluster and accounts for
// every one of them. There are four suites: networking, volumes, ClusterNetworkPolicy, and linked
// clusters.
//
// # What it promises
//
// The result contains every spec of a Suite, that is, every spec with a name that begins with the
// suite's Group. Each spec has passed, failed or been skipped, and each spec that did not pass has
// a reason. Each suite has one reviewed table of reasons (reasons.go, volumereasons.go,
// policyreasons.go, sitereasons.go). The table states why a spec is not run on a cluster like this,
// or why a spec is known to fail and which project is at fault. A spec that skips itself states its
// own reason. Failures that the table does not list are in Report.Unexplained.
//
// The gates of the result judge a run. All failures must be explained, and at least one spec must
// pass. If an oracle listened (Report.Wire), it must not have seen traffic of the cluster in clear.
// The report also lists specs that passed although the table lists them as known failures.
// RunConfig.Wanted returns an error if an entry of the table does not match the name of any spec.
// So the table stays true.
//
// The tests are e2e.test of the lab's version of Kubernetes, unchanged.
// They run in several processes, each with some of the specs, because a spec waits most of its
// time. Specs that are marked as serial or disruptive run alone, after the others. A spec that
// fails without a known reason is tried once more, alone. The first failure stays in the report.
//
// The tests of ClusterNetworkPolicy are not in e2e.test but in a Go test binary. policies.go runs
// them. The tests of linked clusters come from mcs-api, in a binary that the caller builds from a
// checkout, see sites.go.
//
// # What it refuses
//
// The package does not change specs: it keeps all of their assertions and timeouts. Only the
// definition of a driver and the parameters of the upstream's suite may differ. The package does
// not load images. The caller chooses whether the nodes pull the upstream's images or have the
// images of hack/conformance.
//
// Start reading at Run, then reasons.go.
package conformance
