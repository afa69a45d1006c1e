package conformance

// siteReasons is the reviewed table for links between clusters. The first match counts. No Required
// spec is in it.
var siteReasons = []reason{}
