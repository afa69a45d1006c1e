// Package version has the version of a program. It promises one answer for all programs of one
// build, and the same answer for the same commit wherever it is built. It knows no release scheme:
// hack/version.sh decides, and the linker writes it in.
package version

import "runtime/debug"

// stamped is set by the linker: -X github.com/kubeveil/kubeveil/pkg/version.stamped=…
var stamped string

// String returns the output of hack/version.sh at the time of the build: a tag, the number of
// commits since the tag, the commit, and "-dirty" if the sources differed from the commit. For a
// program that was built without hack/version.sh, it returns the revision that the Go tools
// recorded, otherwise the module's version, otherwise "unknown".
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
