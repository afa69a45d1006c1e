package result

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/redact"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
)

// Bounds of the parts of a report that depend on answers of nodes.
const (
	// maxRows bounds the rows of a section, and maxText the bytes of their cells; the worst rows
	// are kept. MaxCell bounds the bytes of a cell before Clean marks what it cut or replaced.
	maxRows = 2000
	maxText = 512 << 10
	MaxCell = 600
	// maxRaw bounds the bytes of a text that are searched for secrets.
	maxRaw = 4 << 10
	// maxSamples bounds the samples of a section, and MaxSample the bytes of one.
	maxSamples = 300
	MaxSample  = 4 << 10
	// maxGaps bounds the gaps of a section.
	maxGaps = 100
)

// Verdict is the result of a row, a section or the report.
type Verdict string

// Verdicts.
const (
	Good Verdict = "good"
	// Note means that an auditor should know the fact, and that it is as documented.
	Note Verdict = "note"
	// Unseen means that the subject was not examined, or not completely.
	Unseen Verdict = "not looked at"
	Bad    Verdict = "bad"
)

// order lists the verdicts from good to bad.
var order = []Verdict{Good, Note, Unseen, Bad}

func worse(a, b Verdict) int { return slices.Index(order, a) - slices.Index(order, b) }

// Result is result.json; fields are added, never renamed.
type Result struct {
	Schema int `json:"schema"`
	// Verdict is the worst verdict of the sections.
	Verdict Verdict `json:"verdict"`
	// Interrupted reports whether the run was ended before its time.
	Interrupted bool      `json:"interrupted"`
	Server      string    `json:"server"`
	Veilctl     string    `json:"veilctl"`
	Began       time.Time `json:"began"`
	Ended       time.Time `json:"ended"`
	// For is the requested duration of reading the uplinks.
	For      string     `json:"for"`
	Sections []*Section `json:"sections"`
	// Unseen lists what this run did not examine, and why. Never lists what no run examines.
	Unseen []Gap    `json:"notLookedAt"`
	Never  []string `json:"neverLookedAt"`
	// Redacted counts the secrets that were removed.
	Redacted int `json:"redacted"`
}

// Gap is something that was not examined, and the reason.
type Gap struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Section is one part of the audit.
type Section struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// Text explains the section to the reader.
	Text string `json:"text"`
	// Verdict is the worst verdict of the section's rows.
	Verdict Verdict `json:"verdict"`
	// Informs reports whether the section is only for information: its verdict does not count for
	// the verdict of the report.
	Informs bool     `json:"informs,omitempty"`
	Head    []string `json:"head"`
	Rows    []Row    `json:"rows"`
	// More counts the rows that were left out. They are not worse than the rows in Rows.
	More int `json:"more,omitempty"`
	// Samples are JSON objects from nodes, each with the field node. MoreSamples counts the samples
	// that were left out.
	Samples     []json.RawMessage `json:"samples,omitempty"`
	MoreSamples int               `json:"moreSamples,omitempty"`
}

// Row is a line of a section.
type Row struct {
	Verdict Verdict `json:"verdict"`
	// Word replaces the name of the verdict on the page.
	Word string `json:"word,omitempty"`
	// Cells has one cell per column in the section's Head. The first cell names the subject.
	Cells []string `json:"cells"`
	// Why is the reason why the subject was not examined, or not completely.
	Why string `json:"why,omitempty"`
}

// Add adds a row.
func (s *Section) Add(v Verdict, cells ...string) {
	s.Rows = append(s.Rows, Row{Verdict: v, Cells: cells})
}

// Lacks adds a row for a subject that was not examined. The last cell is the reason.
func (s *Section) Lacks(what, why string) {
	cells := make([]string, len(s.Head))
	cells[0], cells[len(cells)-1] = what, why
	s.Rows = append(s.Rows, Row{Verdict: Unseen, Cells: cells, Why: why})
}

// AddSamples adds samples, within the bounds of a section.
func (s *Section) AddSamples(samples []json.RawMessage) {
	room := min(len(samples), maxSamples-len(s.Samples))
	s.Samples = append(s.Samples, samples[:room]...)
	s.MoreSamples += len(samples) - room
}

// Finish sorts rows by verdict. It bounds and cleans the texts that come from the cluster, and sets
// the verdicts and Unseen. It has no side effects outside r.
func (r *Result) Finish(secrets *redact.Redactor) {
	known := map[string]string{} // a reason often repeats
	text := func(t string) string {
		t = t[:min(len(t), maxRaw)]
		if safe, ok := known[t]; ok {
			return safe
		}
		out, n := secrets.Text([]byte(t))
		r.Redacted += n
		known[t] = Clean(string(out))
		return known[t]
	}

	r.Schema, r.Verdict, r.Server = 1, Good, text(r.Server)
	for _, s := range r.Sections {
		slices.SortStableFunc(s.Rows, func(a, b Row) int { return worse(b.Verdict, a.Verdict) })
		s.Verdict = Good
		if len(s.Rows) > 0 {
			s.Verdict = s.Rows[0].Verdict
		}
		if !s.Informs && worse(s.Verdict, r.Verdict) > 0 {
			r.Verdict = s.Verdict
		}

		r.Unseen = append(r.Unseen, s.gaps()...)
		s.cut()
		for i := range s.Rows {
			row := &s.Rows[i]
			row.Why = text(row.Why)
			for j := range row.Cells {
				row.Cells[j] = text(row.Cells[j])
			}
		}
		r.Redacted += s.cleanSamples(secrets)
	}

	for i := range r.Unseen {
		r.Unseen[i] = Gap{text(r.Unseen[i].What), text(r.Unseen[i].Why)}
	}
	if r.Interrupted && r.Verdict != Bad {
		r.Verdict = Unseen
	}
}

// cut removes the rows beyond maxRows and maxText.
func (s *Section) cut() {
	kept, bytes := 0, 0
	for ; kept < min(len(s.Rows), maxRows) && bytes < maxText; kept++ {
		for _, cell := range s.Rows[kept].Cells {
			bytes += min(len(cell), MaxCell)
		}
	}
	s.More = len(s.Rows) - kept
	s.Rows = s.Rows[:kept]
}

// gaps returns what the section did not examine. Subjects with the same reason share a Gap.
func (s *Section) gaps() (gaps []Gap) {
	names := map[string][]string{}
	var reasons []string
	for _, row := range s.Rows {
		if row.Verdict != Unseen && row.Why == "" {
			continue
		}
		why := row.Why
		if names[why] == nil && len(reasons) >= maxGaps {
			why = "other reasons, of which there are too many to show"
		}
		if names[why] == nil {
			reasons = append(reasons, why)
		}
		names[why] = append(names[why], row.Cells[0])
	}
	for _, why := range reasons {
		gaps = append(gaps, Gap{s.Title + ": " + verb.Some(names[why]), why})
	}
	return gaps
}

// cleanSamples removes secrets from the samples, and bounds the length of each sample. It returns
// how many secrets it removed.
func (s *Section) cleanSamples(secrets *redact.Redactor) (removed int) {
	for i, one := range s.Samples {
		var fields any
		d := json.NewDecoder(strings.NewReader(string(one)))
		d.UseNumber()
		if d.Decode(&fields) != nil {
			fields = map[string]any{"error": "not JSON"}
		}
		safe, n := secrets.Object(fields)
		removed += n
		text, err := json.Marshal(cleanValue(safe))
		if err != nil || len(text) > MaxSample {
			text = []byte(`{"error":"too long"}`)
		}
		s.Samples[i] = text
	}
	return removed
}

// cleanValue cleans all strings of a decoded JSON value, names of fields included.
func cleanValue(v any) any {
	switch v := v.(type) {
	case string:
		return Clean(v)
	case []any:
		for i := range v {
			v[i] = cleanValue(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, value := range v {
			out[Clean(name)] = cleanValue(value)
		}
		return out
	}
	return v
}

// Clean returns at most the first MaxCell bytes of text, and an ellipsis if it cut text. It
// replaces control and format characters, such as those that change the direction of writing,
// because they could change how other text looks.
func Clean(text string) string {
	text = strings.ToValidUTF8(text, string(unicode.ReplacementChar))
	if len(text) > MaxCell {
		end := MaxCell
		for !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + " …"
	}
	return strings.Map(func(r rune) rune {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.TrimSpace(text))
}

// Label returns the verdict of a row as people read it, with its mark.
func (w Row) Label() string { return mark(w.Verdict) + " " + cmp.Or(w.Word, string(w.Verdict)) }

// Label returns the verdict of a section for people.
func (s *Section) Label() string { return label(s.Verdict, len(s.Rows)) }

// Label returns the verdict of the report for people.
func (r *Result) Label() string { return label(r.Verdict, 2) }

func label(v Verdict, rows int) string {
	if v == Unseen && rows > 1 {
		return mark(v) + " incomplete"
	}
	return mark(v) + " " + string(v)
}

func mark(v Verdict) string {
	return map[Verdict]string{Good: "✓", Note: "•", Unseen: "–", Bad: "✗"}[v]
}
