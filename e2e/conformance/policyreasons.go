package conformance

// policyReasons is the reviewed table for the tests of ClusterNetworkPolicy. The first match
// counts.
var policyReasons = []reason{}
