package servers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/internal/toolresult"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Limits for clients of an API server that is lost, on usual machines.
const (
	// newWithin is the limit until new connections work again. heldWithin is the limit until
	// established connections to the lost server are closed.
	newWithin  = time.Second
	heldWithin = 6 * time.Second
)

const (
	// heldClients is the number of connections that a client holds. The chance that all of them
	// lead to the same of two servers is 1 in 32,768.
	heldClients = 16
	// clientInterval is the interval of new connections, clientTimeout the time limit for an answer
	// over one. On emulated machines, a shorter interval such as 250 ms for two clients would
	// overload the remaining API server with TLS handshakes.
	clientInterval = time.Second
	clientTimeout  = 10 * time.Second
	// clientLength is how long a client runs. It is less than 90 s, after which API servers close
	// idle connections.
	clientLength = 45 * time.Second
	// accountCA is the path in pods of the API servers' CA.
	accountCA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

// apiClients is the output of veil-tools tls-hold. Its times are by the node's clock, which differs
// from this machine's clock, so spans counts from the first sign of the loss.
type apiClients toolresult.KeptAPI

// spans returns for how long new connections failed, and how long it took until the last held
// connection was closed, both from the first sign of the loss.
func (c apiClients) spans() (fresh, held time.Duration) {
	all := slices.Concat(c.Closed, c.Failed)
	if len(all) == 0 {
		return 0, 0
	}
	first := slices.Min(all)
	after := func(times []int64) time.Duration {
		if len(times) == 0 {
			return 0
		}
		return time.Duration(slices.Max(times)-first) * time.Millisecond
	}
	return after(c.Failed), after(c.Closed)
}

// judge returns an error unless the held connections to one of two servers, and no others, were
// closed within held, and new connections worked after fresh.
func (c apiClients) judge(fresh, held time.Duration) error {
	var errs []error
	if c.Opened != heldClients || len(c.Closed) == 0 || len(c.Closed) == c.Opened {
		errs = append(errs, fmt.Errorf("%d of %d held connections were closed, want those to one "+
			"of two servers", len(c.Closed), c.Opened))
	}
	if least := int(clientLength / clientInterval / 4); c.Asked < least {
		errs = append(errs, fmt.Errorf("only %d new connections, want %d", c.Asked, least))
	}

	tookNew, tookHeld := c.spans()
	if tookNew > fresh {
		errs = append(errs, fmt.Errorf("a new connection that began after %s failed, at "+
			"most %s allowed", session.Seconds(tookNew), session.Seconds(fresh)))
	}
	if tookHeld > held {
		errs = append(errs, fmt.Errorf("the last held connection was closed after %s, at most %s "+
			"allowed", session.Seconds(tookHeld), session.Seconds(held)))
	}
	return errors.Join(errs...)
}

// String returns the results for notes.
func (c apiClients) String() string {
	fresh, held := c.spans()
	return fmt.Sprintf("%d of %d held closed within %s, %d of %d new failed within %s",
		len(c.Closed), c.Opened, session.Seconds(held), len(c.Failed), c.Asked,
		session.Seconds(fresh))
}

// apiClient is a run of veil-tools tls-hold in a pod.
type apiClient struct {
	name string
	// open is closed once all connections are held, done once the run has ended. got and err are
	// valid then.
	open, done chan struct{}
	got        apiClients
	err        error
}

// startClients starts two clients on a node. The client in a pod uses the service kubernetes. The
// client on the host network uses server, the address that kubelets use. It returns once both hold
// their connections.
func startClients(ctx context.Context, s *session.Session, name string, server netip.AddrPort) (pod,
	host *apiClient, err error) {
	n, err := s.OwnNamespace(ctx)
	if err != nil {
		return nil, nil, err
	}
	service, err := s.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes",
		metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	addr, err := netip.ParseAddr(service.Spec.ClusterIP)
	if err != nil {
		return nil, nil, fmt.Errorf("service kubernetes: %w", err)
	}

	inPod := &remote.Pod{Name: "pod-" + name, Node: s.Pair[0].Node, Args: []string{"pause"},
		Token: true}
	onHost := &remote.Pod{Name: "host-" + name, Node: s.Pair[0].Node, Args: []string{"pause"},
		Token: true, HostNetwork: true}
	if err := n.RunAll(ctx, inPod, onHost); err != nil {
		return nil, nil, err
	}

	pod = startClient(ctx, inPod, netip.AddrPortFrom(addr, uint16(service.Spec.Ports[0].Port)))
	host = startClient(ctx, onHost, server)
	return pod, host, errors.Join(pod.waitOpen(), host.waitOpen())
}

// startClient starts veil-tools tls-hold in a pod. It ends after clientLength or with ctx.
func startClient(ctx context.Context, in *remote.Pod, to netip.AddrPort) *apiClient {
	c := &apiClient{name: in.Name, open: make(chan struct{}), done: make(chan struct{})}
	r, w := io.Pipe()
	go func() {
		_ = w.CloseWithError(in.ExecStream(ctx, nil, w, "veil-tools", "tls-hold",
			"--to", to.String(), "--ca", accountCA, "--hold", fmt.Sprint(heldClients),
			"--interval", clientInterval.String(), "--timeout", clientTimeout.String(),
			"--for", clientLength.String()))
	}()
	go c.read(r)
	return c
}

// read reads the output of tls-hold, whose last line is the result.
func (c *apiClient) read(r io.Reader) {
	defer close(c.done)
	last, lines := "", bufio.NewScanner(r)
	for lines.Scan() {
		if last = lines.Text(); last == "open" {
			close(c.open)
		}
	}
	if c.err = lines.Err(); c.err == nil {
		c.err = json.Unmarshal([]byte(last), &c.got)
	}
	if c.err != nil {
		c.err = fmt.Errorf("pod %s: its last line is %q: %w", c.name, last, c.err)
	}
}

// waitOpen waits until all connections are held.
func (c *apiClient) waitOpen() error {
	select {
	case <-c.open:
		return nil
	case <-c.done:
		return errors.Join(fmt.Errorf("pod %s: tls-hold ended before it held all "+
			"connections", c.name), c.err)
	}
}

// result waits until the client has ended and returns its result.
func (c *apiClient) result() apiClients {
	<-c.done
	return c.got
}
