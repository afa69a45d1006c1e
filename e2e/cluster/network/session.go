package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Session holds the state that the cases of a run share. Cases run one after the other.
type Session struct {
	Options
	*remote.Cluster

	// shared is the namespace of pair and of host, which is a process of the node of pair's first
	// pod. own is the namespace of the case that runs, or nil.
	shared, own *remote.Namespace
	pair        []*remote.Pod
	host        *remote.Pod
	// leaving are namespaces on their way out, with what came of it.
	leaving  sync.WaitGroup
	mu       sync.Mutex
	departed error

	// served counts the services of the shared pods.
	served int

	notes  []string
	broken string
	// control reports whether plaintext is expected now.
	control bool
	parts   parts
	// before is how nodes were before the first installation, by name.
	before map[string]inventory
}

func newSession(o Options) *Session { return &Session{Options: o, Cluster: o.Cluster} }

// note adds a line to the outcome of the case that runs.
func (s *Session) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// leaks is how many frames of plaintext the oracle has seen until now, 0 without one.
func (s *Session) leaks() uint64 {
	if s.Lab == nil {
		return 0
	}
	return s.Lab.Oracle().Seen().Plaintext
}

// namespace returns the case's own namespace, a privileged one, made at the first call.
func (s *Session) namespace(ctx context.Context) (*remote.Namespace, error) {
	if s.own == nil {
		n, err := s.Namespace(ctx, "e2e", remote.Privileged)
		if err != nil {
			return nil, err
		}
		s.own = n
	}
	return s.own, nil
}

// leave removes the case's namespace while others go on.
func (s *Session) leave(ctx context.Context) {
	if s.own == nil {
		return
	}
	n := s.own
	s.own = nil
	s.leaving.Go(func() {
		err := n.Close(context.WithoutCancel(ctx))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.departed = errors.Join(s.departed, err)
	})
}

// settle waits until no namespace is on its way out.
func (s *Session) settle() error {
	s.leaving.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.departed
}

// close removes what is left, but not from a cluster that goes itself.
func (s *Session) close(ctx context.Context) error {
	if s.Lab != nil {
		return nil
	}
	err := s.dropPair(ctx)
	return errors.Join(err, s.settle())
}

// dropPair removes the shared pods.
func (s *Session) dropPair(ctx context.Context) error {
	n := s.shared
	s.shared, s.pair, s.host = nil, nil, nil
	if n == nil {
		return nil
	}
	return n.Close(ctx)
}

// hostPort is open on the node of the second pod of the pair.
const hostPort = 17000

// twoPods returns the shared pods, echo servers on two nodes, Ready and with the addresses that
// they have now; it makes them where they are not. The second has hostPort on its node.
func (s *Session) twoPods(ctx context.Context) (a, b *remote.Pod, err error) {
	if s.shared == nil {
		if s.shared, err = s.Namespace(ctx, "e2e-pair", remote.Privileged); err != nil {
			return nil, nil, err
		}
	}
	if s.pair == nil {
		workers, err := s.Workers(ctx)
		if err != nil {
			return nil, nil, err
		}
		if len(workers) < 2 {
			return nil, nil, fmt.Errorf("%d nodes take pods, want two", len(workers))
		}
		s.pair = []*remote.Pod{{Name: "a", Node: workers[0].Name},
			{Name: "b", Node: workers[1].Name, HostPort: hostPort}}
	}
	errs := make(chan error, len(s.pair))
	for _, p := range s.pair {
		go func() { errs <- s.keep(ctx, s.shared, p) }()
	}
	return s.pair[0], s.pair[1], errors.Join(<-errs, <-errs)
}

// keep waits for a pod, or runs it if it does not exist.
func (s *Session) keep(ctx context.Context, n *remote.Namespace, p *remote.Pod) error {
	got, err := s.Client.CoreV1().Pods(n.Name).Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return n.Run(ctx, p)
	case err != nil:
		return err
	case got.DeletionTimestamp != nil || got.Status.Phase == corev1.PodFailed:
		// Taken from a node that was away for long.
		p.Namespace = n
		if err := p.Delete(ctx); err != nil {
			return err
		}
		return n.Run(ctx, p)
	}
	return p.WaitReady(ctx, remote.PodPatience)
}

// kubectl runs kubectl like a user who follows the documentation.
func (s *Session) kubectl(ctx context.Context, args ...string) (string, error) {
	words := append(append([]string{}, s.Kubectl...), args...)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
