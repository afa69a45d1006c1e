package report_test

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

var sampleDir = flag.String("sample", "",
	"directory to which the page of the tests is written, to be looked at")

const canary = "kubeveil-canary-pod-0011"

func sample() *report.Report {
	clear := append(
		[]byte(
			"\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x08\x00E\x00\x05\xdc\x00\x00@\x00@\x11\x12\x34\xc6\x13\x01\x02\xc6\x13\x02\x02\x9c@\x1bX\x00\xf0\x00\x00"), (canary + " <script>alert(1)</script> " + strings.Repeat(canary, 9))...)
	noise := make([]byte, 320)
	x := uint32(1)
	for i := range noise {
		x = x*1664525 + 1013904223
		noise[i] = byte(x >> 24)
	}

	ratio := bench.Ratio{Median: 0.982, Min: 0.941, Max: 1.02}
	return &report.Report{
		Banner: "Emulated <machines>",
		Tables: []report.Table{{Title: "Beside published figures", Note: "From other machines.",
			Head: []string{"", "TCP"}, Rows: [][]string{{"Azure | DC4as_v5", "−10 %"}}}},
		Title: "Pods in clear and pods behind Kubeveil",
		Lead: "The same pods, the same traffic, the same wire: once over the reference network, " +
			"once over Kubeveil.",
		Result: &bench.Result{
			Schema: bench.Schema, Commit: "0123456789abcdef", Kernel: "6.18.5", CPUs: 2,
			Platform: bench.Namespaces, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Ended: time.Date(2026, 1, 2, 3, 14, 15, 0, time.UTC), Go: "go1.26.8", Memory: 24057,
			CPU: "AMD EPYC (family 25, model 1, stepping 1)", Load: "0.10 0.20 0.30",
			Command: []string{"kvlab", "demo"}, Facts: map[string]string{"AEAD": "avx2"},
			Leaks: &bench.Leaks{Frames: 48211, ControlPlaintext: 3120},
			Cases: []bench.Case{
				{Name: "tcp_1", MTU: 1500, Unit: bench.Mbps,
					Ours:     bench.Stat{Median: 1791, Min: 1650, Max: 1890, N: 5},
					Base:     &bench.Stat{Median: 1824, Min: 1700, Max: 1902, N: 5},
					BaseName: "bare wireguard-go", Ratio: &ratio},
				{Name: "udp", MTU: 9000, Unit: bench.Mbps,
					Ours:     bench.Stat{Median: 2400, Min: 2200, Max: 2500, N: 5},
					Base:     &bench.Stat{Median: 2450, Min: 2300, Max: 2550, N: 5},
					BaseName: "bare wireguard-go", Ratio: &bench.Ratio{Median: 0.93, Min: 0.8,
						Max: 0.97}},
				{Name: "add_p50", Unit: bench.Millisecond,
					Ours:     bench.Stat{Median: 41, Min: 39, Max: 52, N: 5},
					Base:     &bench.Stat{Median: 38, Min: 36, Max: 44, N: 5},
					BaseName: "ptp and host-local", Ratio: &bench.Ratio{Median: 1.08, Min: 1.02,
						Max: 1.2}},
				{Name: "memory_1000_nodes", Unit: bench.MiB,
					Ours: bench.Stat{Median: 61, Min: 61, Max: 61, N: 1}},
			},
			Gates: []bench.Gate{
				{Name: "TCP, 1 stream, MTU 1500", Want: "ratio ≥ 0.950",
					Got: "0.982 (0.941 to 1.020 in 5 rounds)", OK: true},
				{Name: "UDP, MTU 9000", Want: "ratio ≥ 0.950",
					Got: "0.930 (0.800 to 0.970 in 5 rounds)"},
				{Name: "CPU", Want: "ratio ≤ 1.010", Got: "not judged: control spreads 0.020",
					NotJudged: true},
			},
			Tests: bench.Tests{Passed: 3, Skipped: []bench.Skip{{Name: "kernel WireGuard",
				Reason: "the kernel has none"}}},
		},
		Labels: map[string]string{"tcp_1": "TCP, 1 stream", "udp": "UDP, highest rate"},
		Sides: []report.Capture{
			{Title: "Reference network (ptp, plain routes)", Verdict: "Every payload can be read.",
				Leaks: true, Canary: []byte(canary),
				Frames: []report.Frame{{Summary: "198.19.1.2 → 198.19.2.2  UDP 7000, 302 bytes",
					Data: clear}}},
			{Title: "Kubeveil", Verdict: "Only WireGuard between nodes.", Canary: []byte(canary),
				Frames: []report.Frame{{Summary: "198.18.0.11 → 198.18.0.12  UDP 51820, 320 bytes",
					Data: noise}}},
		},
		Refused: []report.Refusal{{What: "a pod sends from another pod's address",
			Want: "dropped at its veth", Got: "pod_spoofed_source +1", OK: true}},
		Notes: []string{"5 rounds, order drawn with seed 7."},
	}
}

func TestHTML(t *testing.T) {
	var b bytes.Buffer
	r := sample()
	errtest.Must(t, r.HTML(&b))

	got := b.String()
	if *sampleDir != "" {
		errtest.Must(t, r.WriteHTML(filepath.Join(*sampleDir, "report.html")))
	}

	for what, want := range map[string]string{
		"the caveat": "Namespaces on one kernel, 2 cores: ratios are meaningful, " +
			"absolute values are not.",
		"the canary marked":      "<mark>kubeve</mark>",
		"the label of a case":    "TCP, 1 stream, MTU 1500",
		"a gate that was missed": "✗ missed",
		"how many were kept":     "1/2",
		"a gate not judged":      "– not judged",
		"how many were not":      "gates kept, 1 not judged",
		"what was refused":       "pod_spoofed_source &#43;1",
		"what was skipped":       "the kernel has none",
		"how much is not shown":  "more bytes",
		"a case without a base":  "61.0 MiB",
		"the banner":             `class="banner">Emulated &lt;machines&gt;<`,
		"a table":                `<td>Azure | DC4as_v5</td><td title="TCP">−10 %</td>`,
		"ratios by their base":   "<h3>Ours / bare wireguard-go</h3>",
		"the end":                "2026-01-02 03:14:15 UTC",
		"the command":            "kvlab demo",
		"the CPU's family":       "family 25, model 1",
		"the load":               "0.10 0.20 0.30",
		"a fact":                 "<dt>AEAD</dt><dd>avx2</dd>",
		"verdicts first": "<tr><th>verdict</th><th>gate</th><th>want</th><th>got</th></tr>" +
			"</thead>",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not on the page: no %q", what, want)
		}
	}

	if strings.Index(got, "✗ missed") > strings.Index(got, "✓ kept") {
		t.Error("the page does not show the missed gate first")
	}

	// On phones, a table without the class stack hides its last columns.
	for _, bad := range []string{"<script", "http://", "https://", "@import", "url(", "ZgotmplZ",
		"<table>"} {
		if strings.Contains(got, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

// WriteAll writes a page that shows the checksum of the result file.
func TestPageHasTheChecksumOfTheResult(t *testing.T) {
	dir := t.TempDir()
	r := sample()
	errtest.Must(t, r.WriteAll(dir))
	text := filetest.Read(t, filepath.Join(dir, "result.json"))
	want := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	if page := string(filetest.Read(t, filepath.Join(dir, "report.html"))); !strings.Contains(page,
		"SHA-256 "+want) {
		t.Errorf("the page has no %s", want)
	}
	var out bytes.Buffer
	errtest.Must(t, r.Terminal(&out))
	if !strings.Contains(out.String(), want) {
		t.Errorf("the terminal has no checksum: %s", out.String())
	}
}

func TestMarkdown(t *testing.T) {
	var b bytes.Buffer
	errtest.Must(t, sample().Markdown(&b))
	want := `# Emulated <machines>

## Beside published figures

From other machines.

|  | TCP |
|---|---|
| Azure \| DC4as_v5 | −10 % |

Namespaces on one kernel, 2 cores: ratios are meaningful, absolute values are not.

| what | MTU | ours | base | base is | ratio |
|---|---|---|---|---|---|
| TCP, 1 stream | 1500 | 1791 Mbit/s (1650 to 1890) | 1824 Mbit/s (1700 to 1902) | bare wireguard-go | 0.982 (0.941 to 1.020) |
| UDP, highest rate | 9000 | 2400 Mbit/s (2200 to 2500) | 2450 Mbit/s (2300 to 2550) | bare wireguard-go | 0.930 (0.800 to 0.970) |
| add p50 | – | 41.0 ms (39.0 to 52.0) | 38.0 ms (36.0 to 44.0) | ptp and host-local | 1.080 (1.020 to 1.200) |
| memory 1000 nodes | – | 61.0 MiB | – |  | – |

| gate | want | got | kept |
|---|---|---|---|
| TCP, 1 stream, MTU 1500 | ratio ≥ 0.950 | 0.982 (0.941 to 1.020 in 5 rounds) | yes |
| UDP, MTU 9000 | ratio ≥ 0.950 | 0.930 (0.800 to 0.970 in 5 rounds) | **no** |
| CPU | ratio ≤ 1.010 | not judged: control spreads 0.020 | not judged |
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

func TestAResultWithoutComparisons(t *testing.T) {
	r := &report.Report{Title: "empty", Result: &bench.Result{Schema: bench.Schema,
		Platform: bench.Metal, CPUs: 1}}
	var b bytes.Buffer
	errtest.Must(t, r.HTML(&b))
	for _, bad := range []string{"Gates", "Absolute figures", "sniffer"} {
		if strings.Contains(b.String(), "<h2>"+bad) {
			t.Errorf("the page has an empty section %q", bad)
		}
	}
}
