package report

import (
	"bytes"
	"fmt"
)

// shownBytes is the largest number of bytes of a frame that a dump shows.
const shownBytes = 176

// sideView is a Capture with the dumps of its frames.
type sideView struct {
	Capture
	Dumps []dump
}

// dump is a frame in lines of 16 bytes.
type dump struct {
	Summary string
	Lines   []dumpLine
	// More is the number of bytes that are not shown.
	More int
}

// dumpLine is a line of a dump. Runs separate marked from unmarked bytes.
type dumpLine struct {
	Offset string
	Hex    []run
	// Pad fills a short line, so that the text column stays aligned.
	Pad  string
	Text []run
}

type run struct {
	Text string
	Mark bool
}

func newSide(c Capture) sideView {
	s := sideView{Capture: c}
	for _, f := range c.Frames {
		s.Dumps = append(s.Dumps, newDump(f, c.Canary))
	}
	return s
}

func newDump(f Frame, canary []byte) dump {
	d := dump{Summary: f.Summary, More: max(0, len(f.Data)-shownBytes)}
	marked := marks(f.Data, canary)
	shown := f.Data[:len(f.Data)-d.More]
	for at := 0; at < len(shown); at += 16 {
		end := min(at+16, len(shown))
		line := dumpLine{Offset: fmt.Sprintf("%04x", at),
			Pad: fmt.Sprintf("%*s", 3*(at+16-end), "")}
		for i := at; i < end; i++ {
			line.Hex = appendRun(line.Hex, fmt.Sprintf("%02x ", shown[i]), marked[i])
			line.Text = appendRun(line.Text, printable(shown[i]), marked[i])
		}
		d.Lines = append(d.Lines, line)
	}
	return d
}

// marks returns for each byte of data whether it belongs to the canary.
func marks(data, canary []byte) []bool {
	out := make([]bool, len(data))
	if len(canary) == 0 {
		return out
	}
	for from := 0; ; {
		i := bytes.Index(data[from:], canary)
		if i < 0 {
			return out
		}
		for j := range canary {
			out[from+i+j] = true
		}
		from += i + len(canary)
	}
}

func appendRun(runs []run, text string, mark bool) []run {
	if n := len(runs); n > 0 && runs[n-1].Mark == mark {
		runs[n-1].Text += text
		return runs
	}
	return append(runs, run{text, mark})
}

func printable(b byte) string {
	if b < 0x20 || b > 0x7e {
		return "."
	}
	return string(rune(b))
}
