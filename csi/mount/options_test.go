package mount

import (
	"errors"
	"strings"
	"testing"
)

// SELinux's usual label has two categories, and a comma between them.
func TestContextOptions(t *testing.T) {
	const label = `system_u:object_r:container_file_t:s0:c12,c34`

	for _, c := range []struct {
		option string
		why    string
	}{
		{`context="` + label + `"`, ""},
		{`fscontext="` + label + `"`, ""},
		{`defcontext="` + label + `"`, ""},
		{`rootcontext="` + label + `"`, ""},
		{"context=system_u:object_r:container_file_t:s0", ""},
		{"noatime", ""},
		{"data=ordered", ""},
		{"context=" + label, "one option per entry"},
		{`context="` + label, "one option per entry"},
		{`context="` + label + `",suid`, "one option per entry"},
		{`context="a",suid,fscontext="b"`, "one option per entry"},
		{`context="a\",suid,x="b"`, "one option per entry"},
		{"context=\"a,b\x00\"", "one option per entry"},
		{`data="a,b"`, "one option per entry"},
		{`commit="` + label + `"`, "one option per entry"},
		{"noatime,suid", "one option per entry"},
		{"", "one option per entry"},
		{`journal_path="a"`, "a volume is on its own device"},
	} {
		err := CheckOptions([]string{"noatime", c.option})
		if (c.why == "") != (err == nil) || c.why != "" && (!errors.Is(err, ErrOption) ||
			!strings.Contains(err.Error(), c.why)) {
			t.Errorf("%q: %v, want %q", c.option, err, c.why)
		}
	}
}
