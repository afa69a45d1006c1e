package report

import (
	"fmt"
	"html/template"
	"math"

	"github.com/kubeveil/kubeveil/e2e/bench"
)

// chart is the cases of one unit on one scale.
type chart struct {
	Title string
	Rows  []chartRow
}

// chartRow is a case: a label, bars, and the figures beside them.
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
	// Better says which way is good.
	Better string
}

// charts gives a chart for each unit that has comparisons, in order of appearance.
func (r *Report) charts() []chart {
	var out []chart
	index := map[bench.Unit]int{}
	for _, c := range r.Result.Cases {
		if c.Base == nil {
			continue
		}
		i, ok := index[c.Unit]
		if !ok {
			i = len(out)
			index[c.Unit] = i
			out = append(out, chart{Title: chartTitle(c.Unit)})
		}
		out[i].Rows = append(out[i].Rows, chartRow{
			Label: r.fullLabel(c), Bars: bars(c, r.most(c.Unit)),
			Ours: c.Unit.Format(c.Ours.Median), Base: c.Unit.Format(c.Base.Median), BaseName: c.BaseName,
		})
	}
	return out
}

func chartTitle(u bench.Unit) string {
	what := map[bench.Unit]string{
		bench.Mbps: "Throughput", bench.Millisecond: "Latency", bench.CoreSecondsPerGB: "CPU time",
		bench.MiB: "Memory", bench.Percent: "Share", bench.Count: "Number",
	}[u]
	better := "less is better"
	if u.MoreIsBetter() {
		better = "more is better"
	}
	return fmt.Sprintf("%s, %s (%s)", what, u, better)
}

// most is the end of the scale of a unit.
func (r *Report) most(u bench.Unit) float64 {
	most := 0.0
	for _, c := range r.Result.Cases {
		if c.Unit == u && c.Base != nil {
			most = max(most, c.Ours.Max, c.Base.Max)
		}
	}
	return most
}

// bars draws both sides of a case, each with a line from its minimum to its
// maximum. Only numbers and constants are in it.
func bars(c bench.Case, most float64) template.HTML {
	svg := `<svg class="bars" width="100%" height="34" role="img" aria-hidden="true">`
	svg += bar("ours", 2, c.Ours, most) + bar("base", 19, *c.Base, most)
	return template.HTML(svg + `</svg>`)
}

func bar(class string, y int, s bench.Stat, most float64) string {
	return fmt.Sprintf(`<rect class="%s" x="0" y="%d" width="%s" height="13" rx="2"/><line class="spread" x1="%s" x2="%s" y1="%d" y2="%d"/>`,
		class, y, percent(s.Median, most), percent(s.Min, most), percent(s.Max, most), y+6, y+6)
}

// percent is v on a scale from 0 to most.
func percent(v, most float64) string {
	if most <= 0 {
		return "0%"
	}
	return fmt.Sprintf("%.2f%%", math.Min(100, 100*v/most))
}

// ratios draws each comparison on a scale in which 1 is in the middle and equal
// factors are equally far from it.
func (r *Report) ratios() []ratioRow {
	reach := math.Log(1.25)
	for _, c := range r.Result.Cases {
		if c.Ratio != nil {
			reach = max(reach, math.Abs(logRatio(c.Ratio.Min)), math.Abs(logRatio(c.Ratio.Max)))
		}
	}
	at := func(ratio float64) string { return fmt.Sprintf("%.2f%%", 50+48*logRatio(ratio)/reach) }
	var out []ratioRow
	for _, c := range r.Result.Cases {
		if c.Ratio == nil {
			continue
		}
		better := "← less is better"
		if c.Unit.MoreIsBetter() {
			better = "more is better →"
		}
		svg := fmt.Sprintf(`<svg class="dots" width="100%%" height="22" role="img" aria-hidden="true"><line class="one" x1="50%%" x2="50%%" y1="0" y2="22"/>`+
			`<line class="range" x1="%s" x2="%s" y1="11" y2="11"/><circle cx="%s" cy="11" r="5.5"/></svg>`,
			at(c.Ratio.Min), at(c.Ratio.Max), at(c.Ratio.Median))
		out = append(out, ratioRow{
			Label: r.fullLabel(c) + " / " + c.BaseName, Dots: template.HTML(svg), Better: better,
			Text: fmt.Sprintf("%.3f  (%.3f to %.3f)", c.Ratio.Median, c.Ratio.Min, c.Ratio.Max),
		})
	}
	return out
}

// logRatio keeps 0, which has no logarithm, on the page: 1:100.
func logRatio(ratio float64) float64 { return math.Log(max(ratio, 0.01)) }
