package conformance

// policyReasons is the reviewed table of the tests of ClusterNetworkPolicy: the first match wins.
var policyReasons = []reason{}
