package answer

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct{ text, wantErr string }{
		"nothing to say":     {`{}`, ""},
		"refused":            {`{"kind":"disk is blank","error":"disk is blank: record"}`, ""},
		"a word of others":   {`{"path_":""}`, "unknown field"},
		"two":                {`{}{}`, "more than one"},
		"a kind alone":       {`{"kind":"disk is blank"}`, "no error"},
		"a line of a script": {`bash: not found`, "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tt.text))
			if (err == nil) != (tt.wantErr == "") ||
				err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%v, want %q", err, tt.wantErr)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"kind":"disk is blank","error":"x","took":[1]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := Parse(b); err == nil && a.Kind != "" && a.Err() == nil {
			t.Error("refused without an error")
		}
	})
}
