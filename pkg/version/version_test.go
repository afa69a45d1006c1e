package version

import "testing"

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
