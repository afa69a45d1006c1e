package result

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"

	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// shownSamples bounds the samples of a section on the page; result.json has more.
const shownSamples = 20

//go:embed page.html
var page string

var tmpl = template.Must(template.New("audit").Funcs(template.FuncMap{
	"column": report.Column,
	"style":  func() template.CSS { return report.Style },
	"tone":   tone,
	"shown":  func(s []json.RawMessage) []json.RawMessage { return s[:min(len(s), shownSamples)] },
	"text":   func(one json.RawMessage) string { return string(one) },
}).Parse(page))

// tone returns the CSS class of a verdict.
func tone(v Verdict) string {
	return map[Verdict]string{Good: "good", Bad: "bad", Unseen: "unseen"}[v]
}

// writePage writes the page of a finished result; sum is the SHA-256 of result.json.
func writePage(w io.Writer, r *Result, sum string) error {
	if err := tmpl.Execute(w, struct {
		*Result
		Sum string
	}{r, sum}); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}
