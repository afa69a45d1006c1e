package storage

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/disk"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// Session is one run on a cluster whose first machine takes all pods.
type Session struct {
	Cluster *vm.Cluster
	// Disk is an empty disk of that machine. The ciphertext of all volumes is put there, and what
	// its owner sees of it is searched.
	Disk disk.Disk
	// Manifests is the folder of the repository's manifests.
	Manifests string
	// Only selects cases by name; nil means all. The first two cases, which install the driver,
	// always run.
	Only *regexp.Regexp
	// Out gets progress for people.
	Out io.Writer
	// canary is in all that is written to volumes; control is in files beside their ciphertext and
	// on the root disk, in clear.
	canary, control string
	gates           []bench.Gate
}

// one is a case. Its name consists of lower case words with - between them.
type one struct {
	name  string
	limit time.Duration
	run   func(*Session, context.Context) error
}

// Run runs all cases and counts them in r, with the gates for clear text on the disk. A failed case
// does not end the run; Run returns only the error of ctx.
func Run(ctx context.Context, s *Session, r *bench.Result) error {
	mark := fmt.Sprintf("%08x", time.Now().UnixNano()&0xffffffff)
	s.canary, s.control = "kubeveil-canary-"+mark, "kubeveil-control-"+mark
	t := &r.Tests

	chosen := s.chosen()
	for i, c := range chosen {
		if ctx.Err() != nil {
			t.Skipped = append(t.Skipped, bench.Skip{Name: c.name,
				Reason: "the run was ended: " + context.Cause(ctx).Error()})
			continue
		}

		began := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, c.limit,
			fmt.Errorf("not done within %v", c.limit))
		err := c.run(s, limited)
		cancel()
		if err == nil {
			t.Passed++
			fmt.Fprintf(s.Out, "%2d/%d %-27s passed  %6.1f s\n", i+1, len(chosen), c.name,
				time.Since(began).Seconds())
			continue
		}

		t.Failed++
		t.Failures = append(t.Failures, bench.Failure{Name: c.name, Reason: err.Error()})
		fmt.Fprintf(s.Out, "%2d/%d %-27s FAILED  %6.1f s\n      %s\n", i+1, len(chosen), c.name,
			time.Since(began).Seconds(), strings.ReplaceAll(err.Error(), "\n", "\n      "))
		s.describe(context.WithoutCancel(ctx))
	}

	r.Gates = s.gates
	return context.Cause(ctx)
}

// chosen are the cases that are run.
func (s *Session) chosen() []one {
	var out []one
	for i, c := range cases() {
		if i < installing || s.Only == nil || s.Only.MatchString(c.name) {
			out = append(out, c)
		}
	}
	return out
}

// describePatience bounds the queries after a failure.
const describePatience = time.Minute

// describe shows what a failed case left.
func (s *Session) describe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, describePatience)
	defer cancel()
	for _, words := range [][]string{
		{"get", "pods,pvc,volumesnapshots,veilvolumes", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"-n", "kube-system", "logs", "--selector=app.kubernetes.io/component=veil-csi",
			"--all-containers", "--tail=15"},
	} {
		out, err := s.Cluster.Kubectl(ctx, words...)
		fmt.Fprintf(s.Out, "      kubectl %s: %v\n%s\n", strings.Join(words, " "), err, out)
	}
}

// node is on for the machine that takes all pods.
func (s *Session) node(ctx context.Context, line string) (string, error) {
	return s.on(ctx, s.Cluster.Machines[0].Name, line)
}

// on runs a line of shell on a node and returns what it printed, without white space around it.
func (s *Session) on(ctx context.Context, node, line string) (string, error) {
	out, err := s.Cluster.Exec(ctx, node, line)
	return strings.TrimSpace(string(out)), err
}

// shell runs what a person types on a machine of his own, with kubectl, veilctl and the
// administrator's kubeconfig, and returns what it printed. The first command that fails ends it.
func (s *Session) shell(ctx context.Context, script string) (string, error) {
	dir, err := os.MkdirTemp("", "e2e-storage-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, "sh", "-ec", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Cluster.Kubeconfig(),
		"PATH="+filepath.Dir(s.Cluster.Lab.Program("veilctl"))+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return string(out), err
}

// kubectl returns what kubectl printed.
func (s *Session) kubectl(ctx context.Context, words ...string) (string, error) {
	out, err := s.Cluster.Kubectl(ctx, words...)
	return strings.TrimSpace(string(out)), err
}

// lookEach is the pause between two looks: they take time from the machine that they wait for.
const lookEach = time.Second

// until waits for a condition, as long as ctx lasts.
func until(ctx context.Context, what string, fn func() error) error {
	if err := poll.Until(ctx, lookEach, lookEach, fn); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
