package report

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kubeveil/kubeveil/pkg/bench"
)

// Report is the content of the page. Title and Result must be set.
type Report struct {
	// Title and Lead are the first lines of the page: what was done and why.
	Title, Lead string
	// Banner names the platform in a few words, in the largest letters of the page; may be empty.
	Banner string
	// Result is valid (Result.Validate).
	Result *bench.Result
	// Labels holds titles of cases, keyed by Case.Name. Cases without a label show their name.
	Labels map[string]string
	// Sides are captures to be shown next to each other, the capture in clear first; may be empty.
	// SidesTitle is their heading; empty means the default heading, which names a sniffer.
	Sides      []Capture
	SidesTitle string
	// Refused lists the attempts that must have been refused; may be empty. RefusedWhat says what
	// was refused, in the plural; empty means "forbidden packets".
	Refused     []Refusal
	RefusedWhat string
	// Tables are shown before the cases; may be empty.
	Tables []Table
	// Notes describe how the run measured, a sentence each.
	Notes []string
	// Checksum is the SHA-256 of the result file in hex; WriteAll sets it.
	Checksum string
}

// Table is a table of text. All rows have as many cells as Head.
type Table struct {
	// Title names the table. Note explains in a sentence or two how to read the table.
	Title, Note string
	Head        []string
	Rows        [][]string
}

// Capture holds the frames of one side that a sniffer on the wire saw.
type Capture struct {
	// Title names the side. Verdict states in a sentence what the frames show.
	Title, Verdict string
	// Leaks reports whether secrets can be read in the frames.
	Leaks bool
	// Canary is marked in the dumps wherever it occurs; empty marks nothing.
	Canary []byte
	Frames []Frame
}

// Frame is one packet as it was on the wire.
type Frame struct {
	// Summary is one line: addresses, protocol, port.
	Summary string
	// Data begins with the Ethernet header.
	Data []byte
}

// Refusal is a forbidden attempt and its outcome.
type Refusal struct {
	// What describes the attempt. Want is the expected result. Got is the observed result, with the
	// counter or errno that shows it.
	What, Want, Got string
	OK              bool
}

//go:embed report.html
var page string

//go:embed style.css
var style string

// Style is the style sheet of the page: light and dark, for paper and phones. Other pages with
// cards and tables use it too.
var Style = template.CSS(style)

var tmpl = template.Must(template.New("report").Funcs(template.FuncMap{
	"column": Column, "style": func() template.CSS { return Style }}).Parse(page))

// Column returns the name of a column, or "" for a cell beyond the last column. On phones, the page
// shows it before the cell.
func Column(head []string, column int) string {
	if column >= len(head) {
		return ""
	}
	return head[column]
}

// HTML writes the page.
func (r *Report) HTML(w io.Writer) error {
	if err := tmpl.Execute(w, r.view()); err != nil {
		return fmt.Errorf("report %q: %w", r.Title, err)
	}
	return nil
}

// WriteHTML writes the page to path with the suffix ".new" and renames that file to path.
func (r *Report) WriteHTML(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := r.HTML(f); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// WriteAll writes report.md, result.json and report.html into the folder, which must exist. The
// page shows the checksum of result.json.
func (r *Report) WriteAll(folder string) error {
	result := filepath.Join(folder, "result.json")
	if err := r.Result.Write(result); err != nil {
		return err
	}
	text, err := os.ReadFile(result)
	if err != nil {
		return err
	}
	r.Checksum = fmt.Sprintf("%x", sha256.Sum256(text))

	md, err := os.Create(filepath.Join(folder, "report.md"))
	if err != nil {
		return err
	}
	return errors.Join(r.Markdown(md), md.Close(),
		r.WriteHTML(filepath.Join(folder, "report.html")))
}

// view is the input of the template.
type view struct {
	*Report
	Caveat string
	Tiles  []tile
	Gates  []bench.Gate
	Ratios []ratioGroup
	Charts []chart
	Rows   []row
	Sides  []sideView
}

// tile is a figure in large letters. Tone is "good", "bad" or "".
type tile struct{ Figure, Text, Tone string }

// row is a line of the table.
type row struct{ Name, MTU, Ours, Base, BaseName, Ratio, Spread string }

func (r *Report) view() *view {
	v := &view{Report: r, Caveat: r.Result.Caveat(), Tiles: r.tiles(),
		Gates: slices.Clone(r.Result.Gates), Charts: r.charts(), Ratios: r.ratios()}
	slices.SortStableFunc(v.Gates, func(a, b bench.Gate) int {
		switch {
		case a.OK == b.OK:
			return 0
		case b.OK:
			return -1
		}
		return 1
	})
	for _, c := range r.Result.Cases {
		v.Rows = append(v.Rows, r.row(c))
	}
	for _, s := range r.Sides {
		v.Sides = append(v.Sides, newSide(s))
	}
	return v
}

func (r *Report) tiles() []tile {
	var out []tile
	if l := r.Result.Leaks; l != nil {
		out = append(out,
			tile{fmt.Sprint(l.Plaintext), fmt.Sprintf("frames in clear among %d on our network",
				l.Frames), tone(l.Plaintext == 0)},
			tile{fmt.Sprint(l.ControlPlaintext),
				"frames in clear on the reference network, where they belong: the oracle can see",
				controlTone(l.ControlPlaintext)})
	}

	if n := len(r.Result.Gates); n > 0 {
		judged := r.Result.Judged()
		kept, text := judged-len(r.Result.Missed()), "gates kept"
		if judged < n {
			text += fmt.Sprintf(", %d not judged", n-judged)
		}
		out = append(out, tile{fmt.Sprintf("%d/%d", kept, judged), text, tone(kept == judged)})
	}
	if n := len(r.Refused); n > 0 {
		stopped := 0
		for _, f := range r.Refused {
			if f.OK {
				stopped++
			}
		}
		out = append(out, tile{fmt.Sprintf("%d/%d", stopped, n),
			cmp.Or(r.RefusedWhat, "forbidden packets") + " stopped", tone(stopped == n)})
	}
	return out
}

func tone(good bool) string {
	if good {
		return "good"
	}
	return "bad"
}

// controlTone returns the tone for the control's frames in clear. A positive number is expected,
// not good news; zero means that nothing was proven.
func controlTone(frames uint64) string {
	if frames == 0 {
		return "bad"
	}
	return ""
}

// label returns the title of a case.
func (r *Report) label(c bench.Case) string {
	if l, ok := r.Labels[c.Name]; ok {
		return l
	}
	for suffix, text := range map[string]string{"_cpu": ", CPU", "_p99": ", 99th percentile"} {
		if base, ok := strings.CutSuffix(c.Name, suffix); ok {
			return r.label(bench.Case{Name: base}) + text
		}
	}
	return strings.ReplaceAll(c.Name, "_", " ")
}

// fullLabel returns the label with the MTU, if there is one.
func (r *Report) fullLabel(c bench.Case) string {
	if c.MTU == 0 {
		return r.label(c)
	}
	return fmt.Sprintf("%s, MTU %d", r.label(c), c.MTU)
}

func (r *Report) row(c bench.Case) row {
	out := row{Name: r.label(c), MTU: "–", Ours: stat(c.Unit, c.Ours), Base: "–",
		BaseName: c.BaseName, Ratio: "–"}
	if c.MTU > 0 {
		out.MTU = fmt.Sprint(c.MTU)
	}
	if c.Base != nil && c.Ratio != nil {
		out.Base = stat(c.Unit, *c.Base)
		out.Ratio = fmt.Sprintf("%.3f", c.Ratio.Median)
		out.Spread = fmt.Sprintf("%.3f to %.3f", c.Ratio.Min, c.Ratio.Max)
	}
	return out
}

// stat returns the median with its unit, and the spread if there is one.
func stat(u bench.Unit, s bench.Stat) string {
	if s.N == 1 || s.Min == s.Max {
		return u.Format(s.Median)
	}
	return fmt.Sprintf("%s (%s to %s)", u.Format(s.Median), bench.Count.Format(s.Min),
		bench.Count.Format(s.Max))
}

// Markdown writes the cases and gates as two tables.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	if r.Banner != "" {
		fmt.Fprintf(&b, "# %s\n\n", r.Banner)
	}

	for _, t := range r.Tables {
		t.markdown(&b)
	}

	fmt.Fprintf(&b, "%s\n\n| what | MTU | ours | base | base is | ratio "+
		"|\n|---|---|---|---|---|---|\n", r.Result.Caveat())
	for _, c := range r.Result.Cases {
		row := r.row(c)
		ratio := row.Ratio
		if row.Spread != "" {
			ratio += " (" + row.Spread + ")"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", row.Name, row.MTU, row.Ours, row.Base,
			row.BaseName, ratio)
	}

	if len(r.Result.Gates) > 0 {
		b.WriteString("\n| gate | want | got | kept |\n|---|---|---|---|\n")
	}

	for _, g := range r.Result.Gates {
		kept := "yes"
		if g.NotJudged {
			kept = "not judged"
		} else if !g.OK {
			kept = "**no**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", g.Name, g.Want, g.Got, kept)
	}

	_, err := io.WriteString(w, b.String())
	return err
}

// cell escapes characters that would end a cell of a Markdown table.
var cell = strings.NewReplacer("|", "\\|", "\n", " ")

func (t Table) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "## %s\n\n%s\n\n", t.Title, t.Note)
	line := func(cells []string) {
		for _, c := range cells {
			fmt.Fprintf(b, "| %s ", cell.Replace(c))
		}
		b.WriteString("|\n")
	}
	line(t.Head)
	b.WriteString(strings.Repeat("|---", len(t.Head)) + "|\n")
	for _, row := range t.Rows {
		line(row)
	}
	b.WriteString("\n")
}

// Terminal writes the gates and cases as text for a terminal.
func (r *Report) Terminal(w io.Writer) error {
	var b strings.Builder
	b.WriteString("\n")
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "what\tMTU\tours\tbase\tbase is\tratio\n")

	for _, c := range r.Result.Cases {
		row := r.row(c)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", row.Name, row.MTU, row.Ours, row.Base,
			row.BaseName, row.Ratio)
	}

	for i, g := range r.Result.Gates {
		if i == 0 {
			fmt.Fprintf(t, "\ngate\t\twant\tgot\n")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", g.Name, g.Mark(), g.Want, g.Got)
	}

	for i, f := range r.Refused {
		if i == 0 {
			fmt.Fprintf(t, "\ntried\t\thad to happen\thappened\n")
		}
		mark := "✓"
		if !f.OK {
			mark = "✗"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.What, mark, f.Want, f.Got)
	}

	if err := t.Flush(); err != nil {
		return err
	}

	fmt.Fprintf(&b, "\n%s\n", r.Result.Caveat())
	if r.Checksum != "" {
		fmt.Fprintf(&b, "result.json: SHA-256 %s\n", r.Checksum)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
