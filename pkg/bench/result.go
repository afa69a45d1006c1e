package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Schema is the value of Result.Schema.
const Schema = "kubeveil.io/result/v1"

// Platforms, see the package's documentation.
const (
	Namespaces = "namespaces"
	Emulated   = "emulated"
	VM         = "vm"
	SEVSNP     = "sev-snp"
	TDX        = "tdx"
	Metal      = "metal"
)

// nodePlatforms are the platforms that nodes of a cluster can have.
var nodePlatforms = []string{Emulated, VM, SEVSNP, TDX, Metal}

var platforms = append([]string{Namespaces}, nodePlatforms...)

// CheckNodes returns an error unless platform is a platform that nodes of a cluster can have. The
// error lists these platforms.
func CheckNodes(platform string) error {
	if !slices.Contains(nodePlatforms, platform) {
		return fmt.Errorf("nodes cannot be %q: write one of %s", platform,
			strings.Join(nodePlatforms, ", "))
	}
	return nil
}

// Result is the result of one run. doc.go documents its fields.
type Result struct {
	Schema   string    `json:"schema"`
	Commit   string    `json:"commit"`
	Kernel   string    `json:"kernel"`
	CPUs     int       `json:"cpus"`
	CPU      string    `json:"cpu"`
	AEAD     string    `json:"aead"`
	Platform string    `json:"platform"`
	Started  time.Time `json:"started"`
	// Ended is set by Write if it is zero.
	Ended   time.Time `json:"ended"`
	Go      string    `json:"go"`
	Memory  int       `json:"memory_mib"`
	Load    string    `json:"load"`
	Command []string  `json:"command"`
	// Facts are the other choices of the run, by name.
	Facts map[string]string `json:"facts"`
	Cases []Case            `json:"cases"`
	Leaks *Leaks            `json:"leaks"`
	Gates []Gate            `json:"gates"`
	Tests Tests             `json:"tests"`
}

// Case is one quantity, measured on our side and, in a comparison, on another side. Base and Ratio
// are both nil or both set.
type Case struct {
	Name     string `json:"name"`
	MTU      int    `json:"mtu"`
	Unit     Unit   `json:"unit"`
	Ours     Stat   `json:"ours"`
	Base     *Stat  `json:"base"`
	BaseName string `json:"base_name"`
	Ratio    *Ratio `json:"ratio"`
	// Incomplete reports whether the run ended before all rounds. Every gate of such a case is
	// missed.
	Incomplete bool `json:"incomplete,omitempty"`
}

// NewCase returns a case with the values of all rounds, in unit. Without base the case has no
// ratio. With base, both slices have one value per round, and a base value of 0 is an error. An MTU
// of 0 means that the MTU does not matter.
func NewCase(name string, mtu int, unit Unit, ours, base []float64, baseName string) (Case, error) {
	c := Case{Name: name, MTU: mtu, Unit: unit, Ours: Summarize(ours)}
	if len(base) == 0 {
		return c, nil
	}
	ratio, err := Ratios(ours, base)
	if err != nil {
		return Case{}, fmt.Errorf("%s at MTU %d: %w", name, mtu, err)
	}
	b := Summarize(base)
	c.Base, c.BaseName, c.Ratio = &b, baseName, &ratio
	return c, nil
}

// Leaks holds the counts of the leak oracle, in frames; see doc.go.
type Leaks struct {
	Frames           uint64 `json:"frames"`
	Plaintext        uint64 `json:"plaintext"`
	ControlPlaintext uint64 `json:"control_plaintext"`
}

// Gate is a limit with the outcome. Want and Got are for people, with units.
type Gate struct {
	Name string `json:"name"`
	Want string `json:"want"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
	// NotJudged reports whether the measurement was too noisy for the limit. The gate is then
	// neither kept nor missed, and Got states the reason.
	NotJudged bool `json:"not_judged"`
}

// Mark returns the gate's mark in reports: "✓" kept, "✗" missed, "–" not judged.
func (g Gate) Mark() string {
	switch {
	case g.NotJudged:
		return "–"
	case g.OK:
		return "✓"
	}
	return "✗"
}

// Tests counts the tests of a run that consists of tests.
type Tests struct {
	Passed  int    `json:"passed"`
	Failed  int    `json:"failed"`
	Skipped []Skip `json:"skipped"`
	// Failures names the failed tests, in runs that record the reasons; at most Failed.
	Failures []Failure `json:"failures"`
}

// Skip is a test that was not run, and why.
type Skip struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Failure is a test that failed, and why.
type Failure struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Find returns the case of this name and MTU, or nil if there is no such case.
func (r *Result) Find(name string, mtu int) *Case {
	for i := range r.Cases {
		if r.Cases[i].Name == name && r.Cases[i].MTU == mtu {
			return &r.Cases[i]
		}
	}
	return nil
}

// Missed returns the gates that were judged and not kept.
func (r *Result) Missed() []Gate {
	return slices.DeleteFunc(slices.Clone(r.Gates),
		func(g Gate) bool { return g.OK || g.NotJudged })
}

// Judged returns how many gates were kept or missed.
func (r *Result) Judged() (n int) {
	for _, g := range r.Gates {
		if !g.NotJudged {
			n++
		}
	}
	return n
}

// Validate returns all violations of Schema in r, joined into one error, or nil.
func (r *Result) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if r.Schema != Schema {
		bad("schema %q: want %q", r.Schema, Schema)
	}
	if !slices.Contains(platforms, r.Platform) {
		bad("platform %q: want one of %q", r.Platform, platforms)
	}
	if r.Kernel == "" {
		bad("kernel is empty")
	}
	if r.CPUs < 1 {
		bad("cpus %d: want at least 1", r.CPUs)
	}

	if r.Started.IsZero() {
		bad("started is not set")
	}

	type id struct {
		name string
		mtu  int
	}

	seen := map[id]bool{}
	for _, c := range r.Cases {
		if err := c.validate(); err != nil {
			bad("case %q at MTU %d: %w", c.Name, c.MTU, err)
		}
		if seen[id{c.Name, c.MTU}] {
			bad("case %q at MTU %d: there twice", c.Name, c.MTU)
		}
		seen[id{c.Name, c.MTU}] = true
	}

	for _, g := range r.Gates {
		if g.Name == "" || g.Want == "" || g.Got == "" {
			bad("gate %q: name, want and got must be set", g.Name)
		}
	}

	for _, s := range r.Tests.Skipped {
		if s.Name == "" || s.Reason == "" {
			bad("skipped test %q: name and reason must be set", s.Name)
		}
	}

	if len(r.Tests.Failures) > r.Tests.Failed {
		bad("%d failures of %d failed tests", len(r.Tests.Failures), r.Tests.Failed)
	}

	for _, f := range r.Tests.Failures {
		if f.Name == "" || f.Reason == "" {
			bad("failed test %q: name and reason must be set", f.Name)
		}
	}

	return errors.Join(errs...)
}

func (c Case) validate() error {
	if c.Name == "" {
		return errors.New("no name")
	}
	if !slices.Contains(units, c.Unit) {
		return fmt.Errorf("unit %q: want one of %q", c.Unit, units)
	}
	if c.MTU < 0 {
		return errors.New("negative MTU")
	}
	if err := c.Ours.validate(); err != nil {
		return fmt.Errorf("ours: %w", err)
	}
	if (c.Base == nil) != (c.Ratio == nil) || (c.Base == nil) != (c.BaseName == "") {
		return errors.New("base, base_name and ratio: want all or none")
	}
	if c.Base == nil {
		return nil
	}
	if err := c.Base.validate(); err != nil {
		return fmt.Errorf("base: %w", err)
	}
	if c.Base.N != c.Ours.N {
		return fmt.Errorf("ours has %d rounds, base %d", c.Ours.N, c.Base.N)
	}
	return ordered(c.Ratio.Median, c.Ratio.Min, c.Ratio.Max)
}

func (s Stat) validate() error {
	if s.N < 1 {
		return fmt.Errorf("n %d: want at least 1", s.N)
	}
	return ordered(s.Median, s.Min, s.Max)
}

func ordered(median, low, high float64) error {
	for _, v := range []float64{median, low, high} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("value %v: want a number that is not negative", v)
		}
	}
	if low > median || median > high {
		return fmt.Errorf("min %v, median %v, max %v are out of order", low, median, high)
	}
	return nil
}

// Write validates r, writes it to path with the suffix ".new", and renames that file to path, so
// that path never holds half a result. It sets Ended if that is zero.
func (r *Result) Write(path string) error {
	if r.Ended.IsZero() {
		r.Ended = time.Now().UTC().Truncate(time.Second)
	}
	if err := r.Validate(); err != nil {
		return fmt.Errorf("result for %s: %w", path, err)
	}
	out := *r
	out.Cases = orEmpty(out.Cases)
	out.Gates = orEmpty(out.Gates)
	out.Tests.Skipped = orEmpty(out.Tests.Skipped)
	out.Tests.Failures = orEmpty(out.Tests.Failures)
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return fmt.Errorf("result for %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// Read reads a result from a file and validates it. A key that is not in the schema is an error.
func Read(path string) (*Result, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("result %s: %w", path, err)
	}
	return r, nil
}

// Parse parses and validates a result, as Read does for a file.
func Parse(b []byte) (*Result, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var r Result
	if err := d.Decode(&r); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one JSON value")
	}
	return &r, r.Validate()
}
