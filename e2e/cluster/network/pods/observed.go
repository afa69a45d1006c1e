package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// observed returns an error unless an administrator sees the traffic of startTries from anywhere:
// the drops of the forbidden client and who denied them, the tunnel of the allowed client, the
// connections that another policy would end, and all of it in a report.
func observed(ctx context.Context, s *session.Session, allowed, forbidden *remote.Pod) error {
	name := func(pod string) string { return allowed.Namespace.Name + "/" + pod }
	return errors.Join(
		shown(ctx, s, "drops", name(forbidden.Name), func(p telemetry.DroppedPacket) bool {
			return p.Reason == "policy_ingress" && p.DstPod == name("server") &&
				p.Peer == forbidden.Node && slices.Contains(p.Policies, name("server"))
		}),
		shown(ctx, s, "flows", name(allowed.Name), func(f telemetry.Flow) bool {
			return f.Class == telemetry.FlowTunnel && f.ClientPod == name(allowed.Name) &&
				f.Peer != "" && !f.Alarm
		}),
		tried(ctx, s, allowed.Namespace.Name),
		reported(ctx, s),
	)
}

// shown waits until `veilctl VERB --cluster --pod POD` prints a line of JSON that wanted accepts.
func shown[T any](ctx context.Context, s *session.Session, verb, pod string,
	wanted func(T) bool) error {
	return remote.Until(ctx, verb+" of "+pod, time.Minute, func(ctx context.Context) error {
		out, err := veilctl(ctx, s, verb, "--cluster", "--pod", pod, "-o", "json")
		for line := range bytes.Lines([]byte(out)) {
			var v T
			if json.Unmarshal(line, &v) == nil && wanted(v) {
				s.Note("veilctl %s --cluster: %s", verb, bytes.TrimSpace(line))
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("veilctl %s --cluster shows no such line of pod %s\n%s", verb,
			pod, out))
	})
}

// denial denies all packets to the pod server.
const denial = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server}
spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: []}
`

// tried returns an error unless `veilctl policy try --cluster` predicts that the denial ends
// connections of the namespace's server.
func tried(ctx context.Context, s *session.Session, namespace string) error {
	file := filepath.Join(s.Dir, "denial.yaml")
	if err := os.WriteFile(file, []byte(denial), 0o600); err != nil {
		return err
	}
	return remote.Until(ctx, "a try", time.Minute, func(ctx context.Context) error {
		out, err := veilctl(ctx, s, "policy", "try", "-f", file, "-n", namespace, "--cluster", "-o",
			"json")
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != 1 {
			return errors.Join(fmt.Errorf("want exit status 1 of veilctl policy try, which prints %s",
				out), err)
		}

		var tries struct {
			Nodes []struct {
				Node   string
				Answer struct{ Ends []trial.Row }
			}
		}
		if err := json.Unmarshal([]byte(out), &tries); err != nil {
			return fmt.Errorf("veilctl policy try: %w: %q", err, out)
		}
		for _, n := range tries.Nodes {
			for _, r := range n.Answer.Ends {
				if r.Pod == namespace+"/server" && r.Connections > 0 {
					s.Note("veilctl policy try: on %s, %d connections of %s with %s end", n.Node,
						r.Connections, r.Pod, r.Peer)
					return nil
				}
			}
		}
		return fmt.Errorf("veilctl policy try ends no connection of the server:\n%s", out)
	})
}

// reported returns an error unless `veilctl report` reads the uplinks of all nodes and finds no
// frame in clear.
func reported(ctx context.Context, s *session.Session) error {
	dir := filepath.Join(s.Dir, "report")
	out, err := veilctl(ctx, s, "report", "--for", "20s", "--out", dir)
	text, readErr := os.ReadFile(filepath.Join(dir, "result.json"))
	if readErr != nil {
		return errors.Join(readErr, err)
	}

	var report struct {
		Sections []struct{ Name, Verdict string }
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return fmt.Errorf("result.json of veilctl report: %w", err)
	}
	for _, section := range report.Sections {
		s.Note("veilctl report: %s %s", section.Name, section.Verdict)
		if section.Name == "leakcheck" && section.Verdict == "good" {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("the report does not say that the uplinks carry nothing in "+
		"clear:\n%s", out), err)
}
