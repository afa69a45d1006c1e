package report

import (
	"fmt"
	"html/template"
	"math"

	"github.com/kubeveil/kubeveil/pkg/bench"
)

// chart holds the cases of one unit on one scale.
type chart struct {
	Title string
	Rows  []chartRow
}

// chartRow is a case in a chart: its label, its bars and its figures.
type chartRow struct {
	Label    string
	Bars     template.HTML
	Ours     string
	Base     string
	BaseName string
}

// ratioRow is a case on the scale of ratios.
type ratioRow struct {
	Label string
	Dots  template.HTML
	Text  string
	// Better names the better direction.
	Better string
}

// scale identifies the cases that share one chart, because their figures are comparable.
type scale struct {
	unit bench.Unit
	base string
}

// charts returns a chart for each unit and base that has comparisons, in order of appearance.
func (r *Report) charts() []chart {
	var out []chart
	index := map[scale]int{}
	for _, c := range r.Result.Cases {
		if c.Base == nil {
			continue
		}
		on := scale{c.Unit, c.BaseName}
		i, ok := index[on]
		if !ok {
			i = len(out)
			index[on] = i
			out = append(out, chart{Title: chartTitle(c.Unit) + ", beside " + c.BaseName})
		}
		out[i].Rows = append(out[i].Rows, chartRow{
			Label: r.fullLabel(c), Bars: bars(c, r.most(on)),
			Ours: c.Unit.Format(c.Ours.Median), Base: c.Unit.Format(c.Base.Median),
			BaseName: c.BaseName,
		})
	}
	return out
}

func chartTitle(u bench.Unit) string {
	what := map[bench.Unit]string{
		bench.Mbps: "Throughput", bench.Millisecond: "Latency", bench.CoreSecondsPerGB: "CPU time",
		bench.MiB: "Memory", bench.Percent: "Share", bench.IOPS: "Requests", bench.Count: "Number",
		bench.Microsecond: "Latency", bench.Nanosecond: "Latency", bench.PerSecond: "Rate",
	}[u]
	better := "less is better"
	if u.MoreIsBetter() {
		better = "more is better"
	}
	return fmt.Sprintf("%s, %s (%s)", what, u, better)
}

// most returns the largest value of the cases on a scale.
func (r *Report) most(on scale) float64 {
	most := 0.0
	for _, c := range r.Result.Cases {
		if c.Base != nil && on == (scale{c.Unit, c.BaseName}) {
			most = max(most, c.Ours.Max, c.Base.Max)
		}
	}
	return most
}

// bars returns an SVG with a bar for each side of a case, and a line from the side's minimum to its
// maximum. It holds only numbers and constants, so it needs no escaping.
func bars(c bench.Case, most float64) template.HTML {
	svg := `<svg class="bars" width="100%" height="34" role="img" aria-hidden="true">`
	svg += bar("ours", 2, c.Ours, most) + bar("base", 19, *c.Base, most)
	return template.HTML(svg + `</svg>`)
}

func bar(class string, y int, s bench.Stat, most float64) string {
	return fmt.Sprintf(
		`<rect class="%s" x="0" y="%d" width="%s" height="13" rx="2"/><line class="spread" x1="%s" x2="%s" y1="%d" y2="%d"/>`,
		class, y, percent(s.Median, most), percent(s.Min, most), percent(s.Max, most), y+6, y+6)
}

// percent returns v as a percentage of most, at most 100%.
func percent(v, most float64) string {
	if most <= 0 {
		return "0%"
	}
	return fmt.Sprintf("%.2f%%", math.Min(100, 100*v/most))
}

// ratioGroup holds the comparisons with one base.
type ratioGroup struct {
	Base string
	Rows []ratioRow
}

// ratios returns the ratios of all comparisons, grouped by base. The scale of a group is
// logarithmic, with 1 in the middle.
func (r *Report) ratios() []ratioGroup {
	var out []ratioGroup
	reach := map[string]float64{}
	for _, c := range r.Result.Cases {
		if c.Ratio == nil {
			continue
		}
		if reach[c.BaseName] == 0 {
			reach[c.BaseName] = math.Log(1.25)
			out = append(out, ratioGroup{Base: c.BaseName})
		}
		reach[c.BaseName] = max(reach[c.BaseName], math.Abs(logRatio(c.Ratio.Min)),
			math.Abs(logRatio(c.Ratio.Max)))
	}
	for i := range out {
		for _, c := range r.Result.Cases {
			if c.Ratio != nil && c.BaseName == out[i].Base {
				out[i].Rows = append(out[i].Rows, r.ratioRow(c, reach[c.BaseName]))
			}
		}
	}
	return out
}

func (r *Report) ratioRow(c bench.Case, reach float64) ratioRow {
	at := func(ratio float64) string { return fmt.Sprintf("%.2f%%", 50+48*logRatio(ratio)/reach) }
	better := "← less is better"
	if c.Unit.MoreIsBetter() {
		better = "more is better →"
	}
	svg := fmt.Sprintf(
		`<svg class="dots" width="100%%" height="22" role="img" aria-hidden="true"><line class="one" x1="50%%" x2="50%%" y1="0" y2="22"/>`+
			`<line class="range" x1="%s" x2="%s" y1="11" y2="11"/><circle cx="%s" cy="11" r="5.5"/></svg>`,
		at(c.Ratio.Min), at(c.Ratio.Max), at(c.Ratio.Median))
	return ratioRow{
		Label: r.fullLabel(c), Dots: template.HTML(svg), Better: better,
		Text: fmt.Sprintf("%.3f  (%.3f to %.3f)", c.Ratio.Median, c.Ratio.Min, c.Ratio.Max),
	}
}

// logRatio returns the logarithm of a ratio. Ratios below 0.01 count as 0.01, because 0 has no
// logarithm.
func logRatio(ratio float64) float64 { return math.Log(max(ratio, 0.01)) }
