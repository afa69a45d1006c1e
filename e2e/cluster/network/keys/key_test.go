package keys

import (
	"testing"
)

func TestPublishedKey(t *testing.T) {
	key := func(s string) any { return map[string]any{"publicKey": s} }
	for _, c := range []struct {
		name, want string
		keys       []any
	}{
		{"one", "a", []any{key("a")}},
		{"two, the newest counts", "b", []any{key("a"), key("b")}},
		{"none", "", nil},
		{"an empty one", "", []any{key("")}},
		{"not a key", "", []any{7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := publishedKey(map[string]any{"spec": map[string]any{"keys": c.keys}})
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
