package version

import (
	"runtime"
	"testing"
)

func TestString(t *testing.T) {
	if String() == "" || String() == "(devel)" {
		t.Errorf("a test's program says %q, which tells nobody anything", String())
	}
	stamped = "v0.1.0-3-g0123456789ab"
	t.Cleanup(func() { stamped = "" })
	if String() != stamped {
		t.Errorf("got %q, want what the linker wrote", String())
	}
}

func TestRead(t *testing.T) {
	commit, date = "c0ffee", "2026-01-02T03:04:05Z"
	t.Cleanup(func() { commit, date = "", "" })
	got := Read()
	want := Info{String(), "c0ffee", "2026-01-02T03:04:05Z", runtime.Version(),
		runtime.GOOS + "/" + runtime.GOARCH}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
