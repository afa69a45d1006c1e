// Package kfeature probes the kernel for features that some supported kernels lack.
//
// A probe leaves nothing behind. It has three answers: the kernel has the feature, it lacks the
// feature, or it did not answer, for example because the process has no permission.
// FlowTableProblem alone goes by the kernel's release. It is about defects, which no call shows.
//
// Three probes stand beside what they probe with: offloads in pkg/engine/sock, WireGuard in
// pkg/tunnel, and device-mapper in csi/crypt.
//
// Start reading at Feature.Has.
package kfeature
