// Package kfeature probes the kernel for features that some supported kernels lack.
//
// A probe leaves nothing behind. It has three results: the kernel has the feature, the kernel lacks
// the feature, or the probe failed, for example because the process has no permission.
// FlowTableProblem is not a probe: it judges by the kernel's release, because it is about defects
// that no call shows.
//
// Three other probes are in the packages that use the feature: offloads in pkg/engine/sock,
// WireGuard in pkg/tunnel, and device-mapper in csi/crypt.
//
// Start reading at Feature.Has.
package kfeature
