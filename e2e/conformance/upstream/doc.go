// Package upstream reads the output of Kubernetes' e2e.test: the list of its specs, and its report
// in JUnit's XML. It also writes such a report.
//
// Another project's program writes both, and its specs print arbitrary text. A list or a report
// that cannot be parsed is an error, and an unknown status counts as a failure. The package has no
// dependencies, so that its fuzz targets build in seconds. Start reading at ParseJUnit.
package upstream
