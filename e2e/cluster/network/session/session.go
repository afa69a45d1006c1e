package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
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
	Setup
	*remote.Cluster

	// Shared is the namespace of Pair and of host, which is a process of the node of Pair's first
	// pod. own is the namespace of the case that runs, or nil.
	Shared, own *remote.Namespace
	Pair        []*remote.Pod
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
	// Before is how nodes were before the first installation, by name.
	Before map[string]Inventory
}

func newSession(o Setup) *Session { return &Session{Setup: o, Cluster: o.Cluster} }

// Note adds a line to the outcome of the case that runs.
func (s *Session) Note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// leaks is how many frames of plaintext the oracle has seen until now, 0 without one.
func (s *Session) leaks() uint64 {
	if s.Lab == nil {
		return 0
	}
	return s.Lab.Oracle().Seen().Plaintext
}

// OwnNamespace returns the case's own namespace, a privileged one, made at the first call.
func (s *Session) OwnNamespace(ctx context.Context) (*remote.Namespace, error) {
	if s.own == nil {
		n, err := s.Namespace(ctx, "e2e", remote.Privileged)
		if err != nil {
			return nil, err
		}
		s.own = n
	}
	return s.own, nil
}

// CloseOwn removes the case's namespace and waits for that.
func (s *Session) CloseOwn(ctx context.Context) error {
	n := s.own
	s.own = nil
	if n == nil {
		return nil
	}
	return n.Close(ctx)
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

// WaitLeft waits until no namespace is on its way out.
func (s *Session) WaitLeft() { s.leaving.Wait() }

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
	err := s.DropPair(ctx)
	return errors.Join(err, s.settle())
}

// DropPair removes the shared pods.
func (s *Session) DropPair(ctx context.Context) error {
	n := s.Shared
	s.Shared, s.Pair, s.host = nil, nil, nil
	if n == nil {
		return nil
	}
	return n.Close(ctx)
}

// HostPort is open on the node of the second pod of the pair.
const HostPort = 17000

// TwoPods returns the shared pods, echo servers on two nodes, Ready and with the addresses that
// they have now; it makes them where they are not. The second has hostPort on its node.
func (s *Session) TwoPods(ctx context.Context) (a, b *remote.Pod, err error) {
	if s.Shared == nil {
		if s.Shared, err = s.Namespace(ctx, "e2e-pair", remote.Privileged); err != nil {
			return nil, nil, err
		}
	}
	if s.Pair == nil {
		workers, err := s.Workers(ctx)
		if err != nil {
			return nil, nil, err
		}
		if len(workers) < 2 {
			return nil, nil, fmt.Errorf("%d nodes take pods, want two", len(workers))
		}
		s.Pair = []*remote.Pod{{Name: "a", Node: workers[0].Name},
			{Name: "b", Node: workers[1].Name, HostPort: HostPort}}
	}
	errs := make(chan error, len(s.Pair))
	for _, p := range s.Pair {
		go func() { errs <- s.keep(ctx, s.Shared, p) }()
	}
	return s.Pair[0], s.Pair[1], errors.Join(<-errs, <-errs)
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

// RunKubectl runs kubectl like a user who follows the documentation.
func (s *Session) RunKubectl(ctx context.Context, args ...string) (string, error) {
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

// BothFamilies is an error unless these are an IPv4 and an IPv6 address; clusters of one family are
// for others than the lab.
func (s *Session) BothFamilies(addrs []netip.Addr) error {
	if s.Lab != nil && (len(addrs) != 2 || addrs[0].Is4() == addrs[1].Is4()) {
		return fmt.Errorf("addresses %v, want one of each family", addrs)
	}
	return nil
}

// Serve makes a service of the shared pods of that name, in their namespace. It has a name of its
// own: a service of a name that was just deleted takes over endpoint slices that the garbage
// collector then deletes.
func (s *Session) Serve(ctx context.Context, pod string,
	kind corev1.ServiceType) (*remote.Service, error) {
	s.served++
	service := &remote.Service{Name: fmt.Sprintf("%s-%s-%d", pod, strings.ToLower(string(kind)),
		s.served), Pods: map[string]string{"app": pod}, Port: remote.EchoPort, Type: kind}
	if err := s.Shared.Serve(ctx, service); err != nil {
		return nil, err
	}
	return service, s.BothFamilies(service.Addrs)
}

// By returns targets of meet for the echo server of a name by one family, or by any ("").
func By(family, name string) (targets []string) {
	for _, proto := range Protocols {
		targets = append(targets, fmt.Sprintf("%s%s/%s:%d", proto, family, name,
			remote.EchoPort))
	}
	return targets
}

// OnNode returns an echo server among the processes of the node of the pair's first pod. It makes
// the server if there is none.
func (s *Session) OnNode(ctx context.Context) (*remote.Pod, error) {
	if s.host == nil {
		s.host = &remote.Pod{Name: "host", Node: s.Pair[0].Node, HostNetwork: true,
			Listen: HostEchoPort}
	}
	return s.host, s.keep(ctx, s.Shared, s.host)
}
