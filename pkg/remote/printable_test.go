package remote

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// hostile are characters that control a terminal, end a line, or change the direction of text.
var hostile = []rune{0, '\a', '\b', '\r', 0x1b, 0x7f, 0x85, 0x9b, 0x202e, 0x2028, 0x2066, 0xfeff,
	0xe0041}

func TestTextOfANodeDoesNotControlATerminal(t *testing.T) {
	for _, r := range hostile {
		text := "a" + string(r) + "b"
		if got := Printable(text); got != "a\ufffdb" {
			t.Errorf("%U: %q", r, got)
		}
		encoded, err := json.Marshal(map[string]string{"é" + text: `\n\` + text})
		errtest.Must(t, err)
		escape := ""
		for _, unit := range utf16.Encode([]rune{r}) {
			escape += fmt.Sprintf(`\u%04X`, unit)
		}
		for _, in := range []string{string(encoded), `{"éa` + escape + `b":"\\n\\a` + escape + `b"}`} {
			var v map[string]string
			err := json.Unmarshal([]byte(PrintableJSON(in)), &v)
			if want := `\n\` + "a\ufffdb"; err != nil || v["éa\ufffdb"] != want {
				t.Errorf("%U: %v; %s became %q", r, err, in, v)
			}
		}
	}
	if got := Printable("line\n\tvalue é 日"); got != "line\n\tvalue é 日" {
		t.Errorf("harmless text became %q", got)
	}
}

// A text with a newline would look like the line of another node.
func TestDecodedAnswerHasNoNewlines(t *testing.T) {
	var v []string
	err := DecodeAnswer([]byte(`["a\nb", "c\u000ad", "e\\nf", "\t\"\/\u00e9"]`), &v)
	if want := []string{"a; b", "c; d", `e\nf`, "\t\"/é"}; err != nil ||
		strings.Join(v, "|") != strings.Join(want, "|") {
		t.Errorf("%v: %q, want %q", err, v, want)
	}
	if err := DecodeAnswer([]byte("no JSON\\"), &v); err == nil {
		t.Error("text that is not JSON was decoded")
	}
}

// Valid JSON stays valid, except for carriage returns between values, which no veilctl prints. What
// was cleaned is clean.
func FuzzPrintableJSON(f *testing.F) {
	f.Add(`{"a":"\u001b\ud83d\ude00\\u001b"}`)
	f.Add(`"\u202`)
	f.Add(`\`)
	f.Fuzz(func(t *testing.T, text string) {
		got := PrintableJSON(text)
		if json.Valid([]byte(text)) && !json.Valid([]byte(got)) && !strings.Contains(text, "\r") {
			t.Errorf("%q became %q", text, got)
		}
		if again := PrintableJSON(got); again != got {
			t.Errorf("%q became %q, and then %q", text, got, again)
		}
		var v any
		if json.Unmarshal([]byte(got), &v) == nil && Printable(fmt.Sprint(v)) != fmt.Sprint(v) {
			t.Errorf("%q became %q", text, got)
		}
	})
}
