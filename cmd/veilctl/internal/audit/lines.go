package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit/result"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Bounds of the lines of one node.
const (
	maxLine      = 64 << 10
	maxLines     = 64 << 20 // bytes of all lines
	maxKinds     = 64       // values of the field that is counted
	kindSamples  = 3        // samples of each of them
	overflowKind = "others"
)

// errCut is the error for a node that prints more than maxLines bytes.
var errCut = fmt.Errorf("its answer is longer than %d MiB", maxLines>>20)

// tally counts JSON objects, one per line, by the value of a field. Of each value it keeps a few
// objects as samples, and discards the others.
type tally struct {
	node, field string
	counts      map[string]int
	samples     []json.RawMessage
	// summary is the value of the field summary in the last line that has this field. Such lines
	// are not counted.
	summary json.RawMessage
	// alarms counts the lines whose field alarm is set.
	alarms int
	// malformed counts lines that are not JSON objects with the field.
	malformed int
	bytes     int
	rest      []byte
	// skips reports whether the present line is too long, so that its rest is discarded.
	skips bool
}

func (t *tally) Write(text []byte) (int, error) {
	if t.bytes += len(text); t.bytes > maxLines {
		return 0, errCut
	}
	written := len(text)
	for len(text) > 0 {
		line, rest, ended := bytes.Cut(text, []byte("\n"))
		text = rest
		if len(t.rest)+len(line) > maxLine {
			t.rest, t.skips = nil, true
		}
		if !t.skips {
			t.rest = append(t.rest, line...)
		}
		if !ended {
			break
		}
		t.line()
	}
	return written, nil
}

// line counts the line in t.rest, which is complete.
func (t *tally) line() {
	line, skips := bytes.TrimSpace(t.rest), t.skips
	t.rest, t.skips = t.rest[:0], false
	if len(line) == 0 && !skips {
		return
	}

	var fields map[string]json.RawMessage
	var kind string
	malformed := skips || json.Unmarshal(line, &fields) != nil
	if summary := fields["summary"]; !malformed && len(summary) > 0 {
		t.summary = bytes.Clone(summary)
		return
	}
	isRemark := fields["problem"] != nil || fields["gap"] != nil || fields["skipped"] != nil
	if isRemark && fields[t.field] == nil {
		return // The status of the node has the same facts.
	}
	if malformed || json.Unmarshal(fields[t.field], &kind) != nil {
		t.malformed++
		return
	}
	kind = result.Clean(kind)
	if string(fields["alarm"]) == "true" {
		t.alarms++
	}
	if t.counts == nil {
		t.counts = map[string]int{}
	}
	if _, known := t.counts[kind]; !known && len(t.counts) >= maxKinds {
		kind = overflowKind
	}
	t.counts[kind]++
	if t.counts[kind] > kindSamples || len(line) > result.MaxSample {
		return
	}
	name, err := json.Marshal(t.node)
	if err != nil {
		return // encoding a string as JSON never fails
	}
	maps.DeleteFunc(fields, func(field string, _ json.RawMessage) bool {
		return strings.EqualFold(field, "node")
	})
	fields["node"] = name
	if sample, err := json.Marshal(fields); err == nil {
		t.samples = append(t.samples, sample)
	}
}

// lineAnswer is the answer of one node to a verb that prints lines.
type lineAnswer struct {
	tally
	// err is the reason why the answer is missing or incomplete; "" if it is complete. status is
	// the exit status of the node's veilctl.
	err    string
	status int
}

// newAnswer returns the answer of a node whose veilctl ended with err after the verb called name.
func newAnswer(t tally, name string, err error) lineAnswer {
	a := lineAnswer{tally: t}
	var ended *remote.CommandError
	switch {
	case t.bytes > maxLines:
		a.err = errCut.Error()
	case errors.As(err, &ended):
		a.status = ended.Status
		a.err = strings.TrimPrefix(ended.Stderr, "veilctl: ")
		switch {
		case ended.Status == verb.ExitWrong && t.bytes > 0:
			a.err = "" // the output explains more than the exit status
		case strings.Contains(a.err, "unknown verb"):
			a.err = "this veild has no " + name
		case a.err == "":
			a.err = ended.Error()
		}
	case err != nil:
		a.err = err.Error()
	}
	if a.err == "" && t.malformed > 0 {
		a.err = fmt.Sprintf("%d of its lines cannot be read", t.malformed)
	}
	return a
}
