package upstream

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestParseJUnit(t *testing.T) {
	b := filetest.Read(t, "testdata/junit.xml")
	got, err := ParseJUnit(bytes.NewReader(b))
	errtest.Must(t, err)
	want := []Outcome{
		{Step: "[SynchronizedBeforeSuite]", Status: Passed, Elapsed: 50 * time.Millisecond},
		{Name: "[sig-network] Services should work [Conformance]", Status: Passed,
			Elapsed: 12500 * time.Millisecond},
		{Name: "[sig-network] Services should fail", Status: Failed,
			Elapsed: 246300 * time.Millisecond,
			Message: "[FAILED] failed, 2 out of 2 connections failed In [It] at: networking.go:72",
			Log:     "> Enter [BeforeEach]\nSTEP: one"},
		{Name: "[sig-network] Services should panic", Status: Failed, Elapsed: time.Second,
			Message: "runtime error"},
		{Name: "[sig-network] Topology Hints should distribute endpoints evenly", Status: Skipped,
			Elapsed: 500 * time.Millisecond,
			Message: "Zone count is 0, only run for clusters with at least 2 zones, skipping test"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseJUnitRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ xml, want string }{
		"nothing":        {"", "EOF"},
		"cut short":      {`<testsuites><testsuite><testcase name="[It] a"`, "unexpected EOF"},
		"another format": {"<html></html>", "expected element type <testsuites>"},
		"no suite":       {"<testsuites></testsuites>", "no suite"},
		"no name":        {`<testsuites><testsuite><testcase name="[It] "/></testsuite></testsuites>`, "no name"},
		"negative time":  {`<testsuites><testsuite><testcase name="[It] a" time="-1"/></testsuite></testsuites>`, "it took -1 s"},
		"not a number":   {`<testsuites><testsuite><testcase name="[It] a" time="NaN"/></testsuite></testsuites>`, "it took NaN s"},
		"endless":        {`<testsuites><testsuite><testcase name="[It] a" time="1e300"/></testsuite></testsuites>`, "it took 1e+300 s"},
		"time is a word": {`<testsuites><testsuite><testcase name="[It] a" time="long"/></testsuite></testsuites>`, "parsing"},
		"no attribute": {`<testsuites><testsuite><testcase/></testsuite></testsuites>`,
			"no name"},
		"not XML at all": {"FAIL", "EOF"},
		"unclosed suite": {"<testsuites><testsuite>", "unexpected EOF"},
		"wrong end":      {"<testsuites></testsuite>", "closed by"},
		"unknown entity": {"<testsuites><testsuite>&x;</testsuite></testsuites>",
			"invalid character entity"},
		"binary":        {"<testsuites>\x00</testsuites>", "illegal character"},
		"nested suites": {"<testsuites><testsuites/></testsuites>", "no suite"},
		"status unheard": {`<testsuites><testsuite><testcase name=""/></testsuite></testsuites>`,
			"no name"},
		"other encoding":  {`<?xml version="1.0" encoding="latin1"?><testsuites/>`, "encoding"},
		"directive alone": {"<!DOCTYPE x>", "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseJUnit(strings.NewReader(tt.xml)); err == nil ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// An unknown status counts as a failure.
func TestUnknownStatusHasFailed(t *testing.T) {
	got, err := ParseJUnit(strings.NewReader(
		`<testsuites><testsuite><testcase name="[It] a" status="interrupted"/></testsuite></testsuites>`))
	if err != nil || len(got) != 1 || got[0].Status != Failed || got[0].Message != "interrupted" {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzParseJUnit(f *testing.F) {
	b := filetest.Read(f, "testdata/junit.xml")

	f.Add(b)
	f.Add(
		[]byte(
			`<testsuites><testsuite><testcase name="[It] a" time="1"><skipped message="skipped - why"/></testcase></testsuite></testsuites>`))
	f.Fuzz(func(t *testing.T, b []byte) {
		outcomes, err := ParseJUnit(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, o := range outcomes {
			if (o.Name == "") == (o.Step == "") || o.Elapsed < 0 ||
				o.Status != Passed && o.Message == "" {
				t.Errorf("%+v", o)
			}
		}
		// Outcomes that were read can be written, and an XML parser can read the output.
		var out bytes.Buffer
		errtest.Must(t, WriteJUnit(&out, "again", outcomes))
		if _, err := ParseJUnit(&out); err != nil && !strings.Contains(err.Error(), "no name") {
			t.Error(err)
		}
	})
}

func TestWriteJUnit(t *testing.T) {
	var b bytes.Buffer
	err := WriteJUnit(&b, "suite", []Outcome{
		{Name: "a", Status: Passed, Elapsed: time.Second},
		{Name: "b <&>", Status: Failed, Message: "no route", Log: "line\x00"},
		{Name: "c", Status: Skipped, Message: "no cloud"},
	})
	errtest.Must(t, err)
	for _, want := range []string{`tests="3" skipped="1" failures="1"`,
		`<failure message="no route">`, "b &lt;&amp;&gt;", `<skipped message="no cloud">`,
		"line\uFFFD"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
}
