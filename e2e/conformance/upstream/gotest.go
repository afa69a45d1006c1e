package upstream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// ClusterPolicies is the prefix of the names of the tests of ClusterNetworkPolicy. The subtests of
// these tests are specs.
const ClusterPolicies = "CNP"

// frame is the prefix of the lines that package testing itself prints with -test.v=test2json.
const frame = "\x16"

// ended matches the line that package testing prints at the end of a test, without the frame.
var ended = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \((\d{1,6}\.\d{1,3})s\)$`)

// maxLine is the length in bytes of the longest line that a test may print.
const maxLine = 1 << 20

// ParseGoTest reads the output of a Go test binary with -test.v=test2json. It returns the outcomes
// of the test root and of the tests below it, in the order in which they ended. TEST/SUBTEST is a
// spec. TEST and root are steps. A test that did not end has no outcome.
func ParseGoTest(r io.Reader, root string) ([]Outcome, error) {
	var out []Outcome
	logs := map[string]*strings.Builder{}
	var now string
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line, framed := strings.CutPrefix(lines.Text(), frame)
		if !framed {
			if logs[now] == nil {
				logs[now] = &strings.Builder{}
			}
			logs[now].WriteString(line + "\n")
			continue
		}

		if m := ended.FindStringSubmatch(line); m != nil {
			now = m[2]
			o, err := goOutcome(m, root)
			if err != nil {
				return nil, err
			}
			if log := logs[now]; log != nil {
				o.Log = log.String()
			}
			out = append(out, o)
		} else if kind, name, ok := strings.Cut(line, " "); ok && kind == "===" {
			_, name, _ = strings.Cut(name, " ")
			now = strings.TrimSpace(name)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("output of tests: %w", err)
	}
	if len(out) == 0 {
		return nil, errors.New("output of tests: none has ended")
	}
	return explained(out), nil
}

// goOutcome returns the outcome that m describes. m holds the submatches of ended.
func goOutcome(m []string, root string) (Outcome, error) {
	elapsed, err := time.ParseDuration(m[3] + "s")
	if err != nil {
		return Outcome{}, fmt.Errorf("output of tests: %q: %w", m[2], err)
	}
	o := Outcome{Elapsed: elapsed, Status: map[string]Status{
		"PASS": Passed, "FAIL": Failed, "SKIP": Skipped}[m[1]]}
	if name, below := strings.CutPrefix(m[2], root+"/"); below && strings.Contains(name, "/") {
		o.Name = name
	} else if below {
		o.Step = name
	} else {
		o.Step = m[2]
	}
	return o, nil
}

// explained sets the message of each failed or skipped test from its log, and drops the logs of
// passed tests.
func explained(outcomes []Outcome) []Outcome {
	for i := range outcomes {
		o := &outcomes[i]
		if o.Status == Passed {
			o.Log = ""
			continue
		}
		o.Message = summary(o.Log)
	}
	return outcomes
}

// record matches the beginning of a log record: the source file and line.
var record = regexp.MustCompile(`(?m)^ +[^ \t\n]+\.go:\d+: *`)

// trace matches the text that testify prints before the error.
var trace = regexp.MustCompile(`(?s)^\s*Error Trace:.*?\s+Error:\s*`)

// summary returns the last two records of a log in one line: the connection that was tried, and the
// assertion that failed.
func summary(log string) string {
	records := record.Split(log, -1)
	var texts []string
	for _, r := range records[max(0, len(records)-2):] {
		r = trace.ReplaceAllString(r, "")
		if r = strings.Join(strings.Fields(strings.ToValidUTF8(r, "?")), " "); r != "" {
			texts = append(texts, r)
		}
	}
	if len(texts) == 0 {
		return "no message"
	}
	return strings.Join(texts, "; ")
}
