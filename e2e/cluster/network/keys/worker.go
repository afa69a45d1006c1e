package keys

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// youngSession is an age at which WireGuard does not renew a session yet (Rekey-After-Time is 120
// s).
const youngSession = 110 * time.Second

// WorkerRolled replaces the pods of veil-wg, which serves the tunnel of c's node, during flows
// between c's and a's nodes. The flows must survive, in the same WireGuard session.
func WorkerRolled(ctx context.Context, s *session.Session, a, c *remote.Pod) error {
	old, err := s.PodsOf(ctx, session.WorkerSet)
	if err != nil {
		return err
	}
	var all []*session.Flows
	for name, way := range map[string]struct{ from, to *remote.Pod }{
		"flows-of-worker": {c, a}, "flows-to-worker": {a, c}} {
		var to []netip.AddrPort
		for _, addr := range way.to.Addrs {
			to = append(to, netip.AddrPortFrom(addr, remote.EchoPort))
		}
		f, err := s.StartFlows(ctx, name, way.from.Node, to...)
		if err != nil {
			return err
		}
		all = append(all, f)
	}

	key, err := Of(ctx, s, c.Node)
	if err != nil {
		return err
	}
	before, age, err := handshake(ctx, s, a.Node, key)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.Restart(ctx, session.WorkerSet); err != nil {
		return err
	}
	took := time.Since(began)
	s.Note("%d pods of veil-wg replaced in %s", len(old), took.Round(time.Second))

	after, err := s.PodsOf(ctx, session.WorkerSet)
	errs := []error{s.Held(ctx, all, session.GapUndisturbed), err,
		session.Replaced(session.WorkerSet, old, after),
		tookOver(ctx, s, c.Node)}
	now, _, err := handshake(ctx, s, a.Node, key)
	switch {
	case err != nil:
		errs = append(errs, err)
	case now == before:
		s.Note("the session of %s went on", c.Node)
	case age+took < youngSession:
		errs = append(errs, fmt.Errorf("%s began a new session %s after the last", c.Node,
			age+took))
	default:
		s.Note("the session of %s was due: it was renewed", c.Node)
	}
	return errors.Join(errs...)
}

// tookOver returns an error unless the pod of veil-wg on a node logged that it took the device over
// from the earlier pod. It notes for how long the device stopped.
func tookOver(ctx context.Context, s *session.Session, node string) error {
	pod, err := s.Daemon(ctx, session.WorkerSet, node)
	if err != nil {
		return err
	}
	log, err := s.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name,
		&corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("log of %s: %w", pod.Name, err)
	}
	if !bytes.Contains(log, []byte("device taken over with its sessions")) {
		return fmt.Errorf("veil-wg of %s did not take its device over:\n%s", node, log)
	}
	for line := range strings.Lines(string(log)) {
		if _, stood, ok := strings.Cut(line, "stood_still="); ok {
			s.Note("veil0 of %s was taken over and stood still for %s", node,
				strings.TrimSpace(stood))
		}
	}
	return nil
}

// handshake returns the time of the last handshake of a node's kernel with a peer, and its age,
// both by the node's clock.
func handshake(ctx context.Context, s *session.Session, node, key string) (at string,
	age time.Duration, err error) {
	out, err := s.Lab.Exec(ctx, node, "wg show veil0 latest-handshakes; date +%s")
	if err != nil {
		return "", 0, err
	}
	fields := strings.Fields(string(out))
	i := slices.Index(fields, key)
	if i < 0 || i+1 >= len(fields) {
		return "", 0, fmt.Errorf("%s has no peer %s", node, key)
	}
	at = fields[i+1]
	then, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("handshake %q: %w", at, err)
	}
	now, err := strconv.ParseInt(fields[len(fields)-1], 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("date of %s: %w", node, err)
	}
	return at, time.Duration(now-then) * time.Second, nil
}
