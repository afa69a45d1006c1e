// Package upstream reads what Kubernetes' e2e.test says: the list of its specs, and its report in
// JUnit's XML; and it writes such a report.
//
// Both are bytes of a program that another project has written, and of specs that print what they
// like: a list or a report that is not understood is an error, and a status that is not known is no
// success. The package has no dependencies, so that its fuzz targets build in seconds. Start
// reading at ParseJUnit.
package upstream
