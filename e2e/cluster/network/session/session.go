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

	// Shared is the namespace of Pair and host. own is the namespace of the running case, or nil.
	Shared, own *remote.Namespace
	Pair        []*remote.Pod
	host        *remote.Pod
	// leaving counts the namespaces that are being removed. departed joins the errors of their
	// removal.
	leaving  sync.WaitGroup
	mu       sync.Mutex
	departed error

	// served counts the services that Serve made.
	served int

	notes  []string
	broken string
	// control reports whether plaintext is expected now.
	control bool
	parts   parts
	// Before holds the inventories of nodes before the first installation, keyed by name.
	Before map[string]Inventory
}

func newSession(o Setup) *Session { return &Session{Setup: o, Cluster: o.Cluster} }

// Note adds a line to the outcome of the running case.
func (s *Session) Note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// leaks returns the number of frames with plaintext that the oracle has seen. It is 0 without a
// Lab.
func (s *Session) leaks() uint64 {
	if s.Lab == nil {
		return 0
	}
	return s.Lab.Oracle().Seen().Plaintext
}

// OwnNamespace returns the privileged namespace of the running case. The first call makes it.
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

// CloseOwn removes the namespace of the running case and waits until it is gone.
func (s *Session) CloseOwn(ctx context.Context) error {
	n := s.own
	s.own = nil
	if n == nil {
		return nil
	}
	return n.Close(ctx)
}

// leave removes the namespace of the case in the background.
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

// WaitLeft waits until leave has removed all namespaces.
func (s *Session) WaitLeft() { s.leaving.Wait() }

// settle waits like WaitLeft and returns the errors of the removals.
func (s *Session) settle() error {
	s.leaving.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.departed
}

// close removes the shared pods and waits for removals. It does nothing with a Lab, whose cluster
// is removed as a whole.
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

// HostPort is the host port of the pair's second pod.
const HostPort = 17000

// TwoPods returns the shared pods, which are echo servers on two nodes. It creates missing pods,
// waits until both are Ready, and reads their present addresses. The second has HostPort on its
// node.
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

// keep waits until a pod is Ready. It runs a pod that does not exist, and replaces a failed one.
func (s *Session) keep(ctx context.Context, n *remote.Namespace, p *remote.Pod) error {
	got, err := s.Client.CoreV1().Pods(n.Name).Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return n.Run(ctx, p)
	case err != nil:
		return err
	case got.DeletionTimestamp != nil || got.Status.Phase == corev1.PodFailed:
		// The node was away for so long that the pod was evicted.
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

// BothFamilies returns an error unless addrs are an IPv4 and an IPv6 address. It checks only
// clusters of a Lab, because other clusters may have one family.
func (s *Session) BothFamilies(addrs []netip.Addr) error {
	if s.Lab != nil && (len(addrs) != 2 || addrs[0].Is4() == addrs[1].Is4()) {
		return fmt.Errorf("addresses %v, want one of each family", addrs)
	}
	return nil
}

// Serve makes a service of that type for the shared pod of that name. Each service has a new name.
// Otherwise it could take over the endpoint slices of a just deleted service, which the garbage
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

// By returns targets of Meet for the echo server at a DNS name. family is "4", "6" or empty for
// any.
func By(family, name string) (targets []string) {
	for _, proto := range Protocols {
		targets = append(targets, fmt.Sprintf("%s%s/%s:%d", proto, family, name,
			remote.EchoPort))
	}
	return targets
}

// OnNode returns an echo server on the host network of the node of the pair's first pod. It creates
// a missing server.
func (s *Session) OnNode(ctx context.Context) (*remote.Pod, error) {
	if s.host == nil {
		s.host = &remote.Pod{Name: "host", Node: s.Pair[0].Node, HostNetwork: true,
			Listen: HostEchoPort}
	}
	return s.host, s.keep(ctx, s.Shared, s.host)
}
