package upstream

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// Status is the result of a spec.
type Status string

// The values of Status. A spec that was interrupted, timed out or panicked has failed.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
)

// Outcome is the result of one spec or of one of the suite's own steps.
type Outcome struct {
	// Name is the name of the spec. It is empty for a step.
	Name string
	// Step is the name of the step. It is empty for a spec.
	Step    string
	Status  Status
	Elapsed time.Duration
	// Message explains why the spec or step failed, or why a spec skipped itself.
	Message string
	// Log is the output of the spec or step. It is empty if the spec or step passed.
	Log string
}

// These types are the part of JUnit's XML that Ginkgo writes, and that this package reads and
// writes.
type (
	xmlSuites struct {
		XMLName xml.Name   `xml:"testsuites"`
		Suites  []xmlSuite `xml:"testsuite"`
	}
	xmlSuite struct {
		Name     string    `xml:"name,attr"`
		Tests    int       `xml:"tests,attr"`
		Skipped  int       `xml:"skipped,attr"`
		Failures int       `xml:"failures,attr"`
		Time     float64   `xml:"time,attr"`
		Cases    []xmlCase `xml:"testcase"`
	}
	xmlCase struct {
		Name      string     `xml:"name,attr"`
		Classname string     `xml:"classname,attr"`
		Status    string     `xml:"status,attr"`
		Time      float64    `xml:"time,attr"`
		Skipped   *xmlDetail `xml:"skipped"`
		Failure   *xmlDetail `xml:"failure"`
		Error     *xmlDetail `xml:"error"`
		SystemErr string     `xml:"system-err,omitempty"`
	}
	xmlDetail struct {
		Message string `xml:"message,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// ParseJUnit reads the report of e2e.test. Specs that were not selected are left out.
func ParseJUnit(r io.Reader) ([]Outcome, error) {
	var suites xmlSuites
	d := xml.NewDecoder(r)
	if err := d.Decode(&suites); err != nil {
		return nil, fmt.Errorf("JUnit report: %w", err)
	}
	if len(suites.Suites) == 0 {
		return nil, errors.New("JUnit report: no suite")
	}
	var out []Outcome
	for _, s := range suites.Suites {
		for _, c := range s.Cases {
			o, err := c.outcome()
			if err != nil {
				return nil, fmt.Errorf("JUnit report: %q: %w", c.Name, err)
			}
			if o.Status != Skipped || o.Message != "" {
				out = append(out, o)
			}
		}
	}
	return out, nil
}

func (c xmlCase) outcome() (Outcome, error) {
	if math.IsNaN(c.Time) || c.Time < 0 || c.Time > time.Hour.Seconds()*24 {
		return Outcome{}, fmt.Errorf("it took %v s", c.Time)
	}
	o := Outcome{Elapsed: time.Duration(c.Time * float64(time.Second))}
	if name, ok := strings.CutPrefix(c.Name, "[It] "); ok {
		o.Name = strings.TrimSpace(name)
	} else {
		o.Step = c.Name
	}
	if (o.Name == "") == (o.Step == "") {
		return Outcome{}, errors.New("it has no name")
	}
	switch {
	case c.Failure != nil:
		o.Status, o.Message, o.Log = Failed, c.Failure.summary(), c.SystemErr
	case c.Error != nil:
		o.Status, o.Message, o.Log = Failed, c.Error.summary(), c.SystemErr
	case c.Skipped != nil:
		o.Status, o.Message = Skipped, c.Skipped.reason()
	case c.Status == "" || c.Status == string(Passed):
		o.Status = Passed
	default:
		o.Status, o.Message = Failed, c.Status
	}
	return o, nil
}

// summary returns the first paragraph in one line.
func (d *xmlDetail) summary() string {
	text := strings.TrimSpace(d.Message)
	if text == "" {
		text = strings.TrimSpace(d.Text)
	}
	text, _, _ = strings.Cut(text, "\n\n")
	if text = strings.Join(strings.Fields(text), " "); text == "" {
		return "no message"
	}
	return text
}

// reason returns the reason for which a spec skipped itself. In this case Ginkgo writes "skipped -
// REASON". If the spec was not selected, Ginkgo writes only "skipped".
func (d *xmlDetail) reason() string {
	reason, found := strings.CutPrefix(d.Message, "skipped - ")
	if !found {
		return ""
	}
	return strings.Join(strings.Fields(reason), " ")
}

// WriteJUnit writes outcomes as JUnit's XML, as one suite called name.
func WriteJUnit(w io.Writer, name string, outcomes []Outcome) error {
	suite := xmlSuite{Name: name}
	for _, o := range outcomes {
		c := xmlCase{Name: o.Name + o.Step, Classname: name, Status: string(o.Status),
			Time: o.Elapsed.Seconds()}
		suite.Tests++
		suite.Time += c.Time
		switch o.Status {
		case Failed:
			suite.Failures++
			c.Failure, c.SystemErr = &xmlDetail{Message: o.Message}, o.Log
		case Skipped:
			suite.Skipped++
			c.Skipped = &xmlDetail{Message: o.Message}
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(xmlSuites{Suites: []xmlSuite{suite}}); err != nil {
		return fmt.Errorf("write JUnit report: %w", err)
	}
	return nil
}
