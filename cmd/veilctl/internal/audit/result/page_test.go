package result

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/redact"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

var sampleDir = flag.String("sample", "",
	"directory to which the page of the tests is written, to be looked at")

// sample returns a result before finish. It has a good node, a bad node, and a node that does not
// answer. Each string that a node can choose contains text.
func sample(text string) *Result {
	status := &Section{Name: "status", Title: "Status of the nodes", Text: "What status shows.",
		Head: []string{"node", "veild", "tunnel", "peers that answer", "what is wrong"}}
	status.Add(Good, "node-1", "v0.1.0"+text, "kernel", "2 of 2", "")
	status.Add(Bad, "node-2", "v0.1.0", "userspace", "1 of 2", "its guard is not in force"+text)
	status.Lacks("node-3", "veild does not answer: no answer in time"+text)

	drops := &Section{Name: "drops", Title: "Dropped packets by reason", Text: "What drops shows.",
		Head: []string{"reason or node", "dropped in this time", "dropped since the node started",
			"sampled", "remark"}}
	drops.Add(Note, "dst_in_range"+text, "7", "48211", "7", "")
	one, err := json.Marshal(map[string]any{"node": "node-1", "reason": "dst_in_range",
		"srcPod": "shop/web" + text, "src": "198.18.0.7", "dst": "198.18.4.1"})
	if err != nil {
		panic(err)
	}
	drops.AddSamples([]json.RawMessage{one})

	versions := &Section{Name: "versions", Title: "Versions and image digests", Text: "By digest.",
		Head: []string{"container", "image", "digest", "pods", "remark"}}
	versions.Add(Good, "veild/veild", "registry.example/kubeveil:v0.1.0",
		"registry.example/kubeveil@sha256:"+strings.Repeat("0123456789abcdef", 4), "2", ""+text)

	exceptions := &Section{Name: "exceptions", Title: "Exceptions in force", Informs: true,
		Head: []string{"no.", "what is clear"}}
	for _, e := range []struct {
		verdict Verdict
		word    string
		cells   []string
	}{{Note, "open", []string{"1", "Traffic that leaves"}}, {Note, "not known", []string{"7", ""}},
		{Good, "closed", []string{"14", ""}}} {
		exceptions.Rows = append(exceptions.Rows, Row{Verdict: e.verdict, Word: e.word,
			Cells: e.cells})
	}
	return &Result{Server: "https://192.0.2.1:6443", Veilctl: "v0.1.0", For: "10m0s",
		Never:    []string{"disks and volumes"},
		Began:    time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Ended:    time.Date(2026, 1, 2, 3, 14, 5, 0, time.UTC),
		Sections: []*Section{status, drops, versions, exceptions}}
}

// render finishes a result and returns its page.
func render(t *testing.T, r *Result) string {
	t.Helper()
	r.Finish(redact.New(nil, nil))
	var b bytes.Buffer
	errtest.Must(t, writePage(&b, r, strings.Repeat("0", 64)))
	return b.String()
}

func TestPageShowsVerdictsFirst(t *testing.T) {
	r := sample("")
	page := render(t, r)
	if *sampleDir != "" {
		errtest.Must(t, os.WriteFile(filepath.Join(*sampleDir, "page.html"), []byte(page), 0o600))
	}
	if r.Verdict != Bad {
		t.Errorf("the whole is %q", r.Verdict)
	}

	for what, want := range map[string]string{
		"the bad node":       `<td class="verdict bad">✗ bad</td><td title="node">node-2</td>`,
		"the silent node":    `unseen">– not looked at</td><td title="node">node-3</td>`,
		"the gap":            `Status of the nodes: node-3</td><td title="why">veild does not answer`,
		"the whole":          `<div class="card tile bad"><b>✗ bad</b><span>overall verdict</span>`,
		"an exception":       `• open</td><td title="no.">1</td><td title="what is clear">Traffic that`,
		"an unknown one":     `<td class="verdict ">• not known</td><td title="no.">7</td>`,
		"a closed one":       `<td class="verdict good">✓ closed</td><td title="no.">14</td>`,
		"the digest":         "@sha256:0123456789abcdef",
		"a sample":           "shop/web",
		"what nothing reads": "disks and volumes",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%s: no %q on the page", what, want)
		}
	}
	for _, head := range regexp.MustCompile(`<thead><tr><th>[^<]*`).FindAllString(page, -1) {
		if !strings.HasSuffix(head, "<th>verdict") {
			t.Errorf("a table begins with %s", head)
		}
	}
	if strings.Index(page, ">node-2") > strings.Index(page, ">node-1") {
		t.Error("the bad node is not first")
	}
	for _, bad := range []string{"<script", "http://", "src=", "@import", "url(", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

// Text from a node never adds markup, and the page has no control or format characters from it.
func TestHostileTextIsTextOnly(t *testing.T) {
	tags := regexp.MustCompile(`<[^>]*>`)
	want := tags.FindAllString(render(t, sample("")), -1)
	for _, hostile := range []string{"</td><script>alert(1)</script>", `" onload="x`,
		"<img src=x onerror=y>", "</style><b>", "{{.}}", "<!--", "\u202e<b>", "\x1b[2J\x00\xff",
		strings.Repeat("<b>", 4000)} {
		page := render(t, sample(hostile))
		if diff := cmp.Diff(want, tags.FindAllString(page, -1)); diff != "" {
			t.Errorf("%.30q changes the tags:\n%s", hostile, diff)
		}
		if strings.ContainsAny(page, "\u202e\x1b\x00") {
			t.Errorf("%.30q comes out as it is", hostile)
		}
		if len(page) > 100<<10 {
			t.Errorf("%.30q: %d bytes", hostile, len(page))
		}
	}
}

func TestResultIsBounded(t *testing.T) {
	s := &Section{Name: "status", Title: "Status", Head: []string{"node", "why"}}
	for i := range 5_000 {
		s.Lacks(fmt.Sprintf("node-%d", i), strings.Repeat("x", 1000)+fmt.Sprint(i%500))
		s.AddSamples([]json.RawMessage{[]byte(`{"a":"` + strings.Repeat("y", MaxSample-20) + `"}`)})
	}
	s.Add(Bad, "the last", "bad")
	r := &Result{Sections: []*Section{s}}
	page := render(t, r)
	text, err := json.Marshal(r)
	errtest.Must(t, err)
	if len(text) > 3<<20 || len(page) > 2<<20 {
		t.Errorf("result.json has %d bytes, the page %d", len(text), len(page))
	}
	if s.More == 0 || s.MoreSamples != 5_000-maxSamples || s.Rows[0].Cells[0] != "the last" {
		t.Errorf("%d rows and %d samples are left out; the first is %v", s.More, s.MoreSamples,
			s.Rows[0].Cells[0])
	}
	if len(r.Unseen) > maxGaps+1 {
		t.Errorf("%d gaps", len(r.Unseen))
	}
}

func TestFolderMustBeEmpty(t *testing.T) {
	dir := t.TempDir()
	errtest.Must(t, CheckFolder(dir))
	errtest.Must(t, CheckFolder(filepath.Join(dir, "new")))
	filetest.Write(t, filepath.Join(dir, "a"), []byte("b"), 0o600)
	if err := CheckFolder(dir); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a folder with a file: %v", err)
	}
	if err := CheckFolder(filepath.Join(dir, "none", "new")); err == nil {
		t.Error("a folder in no folder is accepted")
	}
	if _, err := Write(dir, &Result{}); err == nil {
		t.Error("a folder that was filled meanwhile is replaced")
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(dir), ".veilctl-report-*")); len(
		left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}
