package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Setup configures a run.
type Setup struct {
	Cluster *remote.Cluster
	// Lab made the cluster for this run. Nil means that the cluster existed before.
	Lab Lab
	// Core leaves out the cases with a reason Beyond. Full also runs the cases with a reason Long.
	Core bool
	Full bool
	// Match selects cases by name. Nil means all.
	Match *regexp.Regexp
	// Dir receives artefacts. Manifests is the folder of the kustomization to install.
	Dir, Manifests string
	// Kubectl is the command line of kubectl, with its kubeconfig.
	Kubectl []string
	// Veilctl is the path of veilctl, Kubeconfig the path of the kubeconfig that it uses.
	Veilctl, Kubeconfig string
	// Out receives the progress, a line per case.
	Out io.Writer
}

// closing is the time limit to describe and remove what a case or the run left.
const closing = 3 * time.Minute

// Run runs the cases and returns their outcomes. When ctx ends, the remaining cases count as
// skipped. It returns an error only if the run itself fails, not for failed cases.
func Run(ctx context.Context, cases []Case, o Setup) (*Report, error) {
	s := newSession(o)
	nodes, err := o.Cluster.Nodes(ctx)
	if err != nil {
		return nil, err
	}

	r := &Report{Kernel: kernels(nodes)}
	var pace remote.Pace
	ctx = remote.WithPace(ctx, &pace)

	have := s.have(nodes)
	for i, c := range cases {
		if reason := s.reasonToSkip(c, have); reason != "" {
			if o.Match == nil || o.Match.MatchString(c.Name) {
				r.Outcomes = append(r.Outcomes, Outcome{Name: c.Name, Skipped: reason})
			}
			continue
		}
		if ctx.Err() != nil {
			r.Outcomes = append(r.Outcomes, Outcome{Name: c.Name, Skipped: Ended(ctx)})
			continue
		}
		fmt.Fprintf(o.Out, "%2d/%d %-26s ", i+1, len(cases), c.Name)
		outcome := s.one(ctx, c)
		r.Outcomes = append(r.Outcomes, outcome)
		outcome.print(o.Out)
		if outcome.Err != nil && c.Breaks {
			s.broken = c.Name
		}
	}

	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	r.parts, r.Pace = s.parts, pace.Factor()
	return r, s.close(after)
}

// Ended returns the reason why a case was skipped after ctx ended.
func Ended(ctx context.Context) string { return "the run was ended: " + context.Cause(ctx).Error() }

// reasonToSkip returns the reason why a case is skipped, or an empty string if it runs.
func (s *Session) reasonToSkip(c Case, have []Need) string {
	if s.Match != nil && !s.Match.MatchString(c.Name) && !c.Always {
		return "not selected"
	}
	for _, need := range c.Needs {
		if !slices.Contains(have, need) {
			return "needs " + string(need)
		}
	}
	if s.broken != "" {
		return "case " + s.broken + " failed"
	}
	if c.Beyond != "" && s.Core && s.Match == nil {
		return "not part of the core run: " + c.Beyond
	}
	// A long case also runs if Match selects it.
	if c.Long != "" && !s.Full && s.Match == nil {
		return "left to the full run: " + c.Long
	}
	return ""
}

// kernels returns the distinct Linux releases of the nodes with a kubelet, separated by commas.
func kernels(nodes []remote.Node) string {
	var releases []string
	for _, n := range nodes {
		release := n.Object.Status.NodeInfo.KernelVersion
		if n.Object.Labels[corev1.LabelOSStable] == "linux" && !slices.Contains(releases, release) {
			releases = append(releases, release)
		}
	}
	return strings.Join(releases, ", ")
}

// have returns the needs that this run meets.
func (s *Session) have(nodes []remote.Node) []Need {
	var have []Need
	if s.Lab != nil {
		have = append(have, Machines, Fresh, Outside)
	}
	workers := 0
	for _, n := range nodes {
		// Nodes of a fresh cluster are not Ready yet.
		if n.Schedulable || s.Lab != nil && n.Object.Labels[corev1.LabelOSStable] == "linux" {
			workers++
		}
	}
	if workers >= 2 {
		have = append(have, TwoWorkers)
	}
	return have
}

// one runs a case, checks the oracle, describes what a failed case left, and begins to remove it.
func (s *Session) one(ctx context.Context, c Case) Outcome {
	outcome := Outcome{Name: c.Name}
	began := time.Now()
	s.notes = nil
	s.Log.Info("case begins", "case", c.Name)
	leaked := s.leaks()
	patience := remote.Patience(ctx, c.Limit)
	limit, cancel := context.WithTimeoutCause(ctx, patience,
		fmt.Errorf("its limit of %s is over", patience))
	err := c.Run(limit, s)
	if cause := context.Cause(limit); err != nil && cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}

	cancel()
	if reason, ok := skipped(err); ok {
		outcome.Skipped, err = reason, nil
	}
	if n := s.leaks() - leaked; n > 0 && !s.control {
		err = errors.Join(err, fmt.Errorf("%d frames of plaintext on the wire", n))
	}
	if err != nil && ctx.Err() != nil {
		outcome.Skipped, err = Ended(ctx), nil
	}

	outcome.Err, outcome.Notes, outcome.Took = err, s.notes, time.Since(began)
	if err != nil {
		dir := filepath.Join(s.Dir, c.Name)
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
		s.describe(after, dir)
		cancel()
		outcome.Artefacts = dir
	}

	s.leave(ctx)
	s.Log.Info("case ends", "case", c.Name, "took", outcome.Took.Round(time.Millisecond),
		"err", outcome.Err, "notes", strings.Join(s.notes, "; "))
	return outcome
}
