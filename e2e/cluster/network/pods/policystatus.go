package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// veilctl runs veilctl with the cluster's kubeconfig, as an administrator does. It returns the
// output, even with an error.
func veilctl(ctx context.Context, s *session.Session, words ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.Veilctl, append(words, "--kubeconfig", s.Kubeconfig)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("veilctl %s: %w: %s", strings.Join(words, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// enforcedNowhere returns an error unless veilctl reports, for a cluster without enforcement, that
// no node enforces policies. It is the control of enforcedEverywhere.
func enforcedNowhere(ctx context.Context, s *session.Session) error {
	nodes, err := s.PodsOf(ctx, session.VeildSet)
	if err != nil {
		return err
	}
	out, err := veilctl(ctx, s, "policy", "wait", "--timeout", "20s")
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 1 {
		return errors.Join(fmt.Errorf("want exit status 1 of veilctl policy wait without "+
			"policies; it prints %q", out), err)
	}
	return lastSays(out, fmt.Sprintf("0 of %d nodes enforce the policies of the API server "+
		"after 20s.", len(nodes)))
}

// enforcedEverywhere returns an error unless `veilctl policy wait` reports that every node enforces
// the policies of the API server, and `veilctl status` shows the same revision on all nodes.
func enforcedEverywhere(ctx context.Context, s *session.Session) error {
	nodes, err := s.PodsOf(ctx, session.VeildSet)
	if err != nil {
		return err
	}

	began := time.Now()
	out, err := veilctl(ctx, s, "policy", "wait", "--cluster", "--timeout", "2m")
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if err := lastSays(out, fmt.Sprintf("%d of %[1]d nodes enforce the policies of the API server.",
		len(nodes))); err != nil {
		return err
	}
	s.Note("veilctl policy wait: %s after %s", strings.TrimSpace(out),
		time.Since(began).Round(time.Second))

	// Retry, because a node may answer slowly now.
	return remote.Until(ctx, "one revision of policies", time.Minute,
		func(ctx context.Context) error {
			// veilctl exits with 1 if a node has a problem, so parse its output first.
			out, err := veilctl(ctx, s, "status", "--cluster", "-o", "json")
			revision, wrong := oneRevision([]byte(out), len(nodes))
			if wrong != nil {
				return errors.Join(wrong, err)
			}
			s.Note("veilctl status: revision %s on %d nodes", revision, len(nodes))
			return nil
		})
}

// lastSays returns an error unless want is the last line of text.
func lastSays(text, want string) error {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if last := lines[len(lines)-1]; last != want {
		return fmt.Errorf("the last line of veilctl is %q, want %q\n%s", last, want, text)
	}
	return nil
}

// oneRevision returns the revision of policies that want nodes enforce, according to status, the
// output of `veilctl status -o json`. It returns an error if another number of nodes answered, or
// if the revisions differ.
func oneRevision(status []byte, want int) (revision string, err error) {
	var cluster struct {
		Nodes []struct {
			Node           string `json:"node"`
			Answered       bool   `json:"answered"`
			PolicyRevision string `json:"policyRevision"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal(status, &cluster); err != nil {
		return "", fmt.Errorf("veilctl status: %w: %q", err, status)
	}

	answered := 0
	for _, n := range cluster.Nodes {
		if !n.Answered {
			continue
		}
		if answered++; answered == 1 {
			revision = n.PolicyRevision
		}
		if n.PolicyRevision == "" || n.PolicyRevision != revision {
			return "", fmt.Errorf("veilctl status: node %s enforces revision %q, others %q", n.Node,
				n.PolicyRevision, revision)
		}
	}
	if answered != want {
		return "", fmt.Errorf("veilctl status: %d nodes answered, want %d", answered, want)
	}
	return revision, nil
}
