// Package version has the version of a program. It promises one answer for all programs of one
// build, and the same answer for the same commit wherever it is built. It knows no release scheme:
// hack/version.sh decides, and the linker writes it in.
package version

import "runtime/debug"

// stamped is set by the linker: -X github.com/kubeveil/kubeveil/pkg/version.stamped=…
var stamped string

// String returns the output of hack/version.sh when the program was built: a tag, what follows it,
// the commit, and "-dirty" when the sources differed from the commit. For a program that was built
// without it, String returns the revision that the Go tools recorded, or the module's version, or
// "unknown".
func String() string {
	if stamped != "" {
		return stamped
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return s.Value[:12]
		}
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	return "unknown"
}
