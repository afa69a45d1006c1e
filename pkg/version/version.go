// Package version has the version of a program. It promises one answer for all programs of one
// build, and the same answer for the same commit wherever it is built. It knows no release scheme:
// hack/version.sh decides, and the linker writes it in.
//
// Start reading at Read.
package version

import (
	"runtime"
	"runtime/debug"
)

// stamped, commit and date are set by the linker: -X github.com/kubeveil/kubeveil/pkg/version.…
var stamped, commit, date string

// Info describes a build. Its JSON is output for programs: fields are added, never renamed.
type Info struct {
	// Version is the result of String.
	Version string `json:"version"`
	// Commit is the hash of the commit, and Date its time. They are empty if the sources had no
	// git. A version that ends in "-dirty" is of other sources.
	Commit string `json:"commit,omitempty"`
	Date   string `json:"date,omitempty"`
	// Go is the version of Go. Platform is the operating system and architecture.
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Read returns what is known of the running program's build.
func Read() Info {
	return Info{Version: String(), Commit: commit, Date: date, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
}

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
