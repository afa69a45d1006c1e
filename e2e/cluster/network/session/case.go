package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Need is a requirement of a case beyond a kubeconfig; its text completes "needs …".
type Need string

// Needs.
const (
	// Machines means the machines of Lab.
	Machines Need = "the machines beneath the cluster"
	// TwoWorkers are nodes that take pods.
	TwoWorkers Need = "two nodes that take pods"
	// Outside means a host that does not belong to the cluster.
	Outside Need = "a host outside the cluster"
	// Fresh is a cluster that nothing was installed on yet and no other test uses.
	Fresh Need = "a cluster of the suite's own without a network"
)

// Case is a test of a cluster.
type Case struct {
	// Name consists of lower case words with - between them.
	Name string
	// About describes the case to people in one sentence.
	About string
	Needs []Need
	// Limit bounds it.
	Limit time.Duration
	// Long is why it is left to the full run, or "".
	Long string
	// Beyond is the reason why the case is not part of the core, or "".
	Beyond string
	// Always runs it also when it was not selected: others build on it.
	Always bool
	// Breaks means that nothing after it can be judged when it has failed.
	Breaks bool
	Run    func(ctx context.Context, s *Session) error
}

// Lab is the interface to a cluster that the run made itself: it does what the API server cannot. A
// cluster that is known only by its kubeconfig has none, and cases that need it are skipped for
// that reason.
type Lab interface {
	// Platform returns what the nodes are, one of the platforms of pkg/bench.
	Platform() string
	// Exec runs a line of shell as root on a node and returns its standard output.
	Exec(ctx context.Context, node, line string) ([]byte, error)
	// Reboot cuts a node's power, restores it and returns when the node answers; its pods may not
	// run yet.
	Reboot(ctx context.Context, node string) error
	// Join adds a machine by kubeadm join and returns its name; the node may not be Ready yet.
	Join(ctx context.Context) (string, error)
	// Leave drains a node that joined, deletes its Node object and turns the machine off.
	Leave(ctx context.Context, node string) error
	// StopAPI ends the API server; StartAPI starts it again and returns when it is ready.
	StopAPI(ctx context.Context) error
	StartAPI(ctx context.Context) error
	// SecondAPI starts another API server of the cluster, on a host of its own that is not a node.
	// It returns when the server is ready and listed in the service kubernetes.
	SecondAPI(ctx context.Context) (APIServer, error)
	// Oracle listens on the wire outside the nodes.
	Oracle() *leak.Oracle
	// Clear installs the reference network on the nodes, which encrypts nothing; Unclear takes it
	// away without a trace.
	Clear(ctx context.Context) error
	Unclear(ctx context.Context) error
	// OutsideAddrs are the addresses of a host outside the cluster with an echo server at
	// remote.EchoPort, IPv4 first. ControlAddrs are the addresses of the control plane's host, a
	// node without pods that has such a server too.
	OutsideAddrs() []netip.Addr
	ControlAddrs() []netip.Addr
	// OutsideCanary is in payloads that may leave the cluster.
	OutsideCanary() string
	// OutsideSend sends messages with that canary from the host outside to an echo server; they
	// must all come back.
	OutsideSend(ctx context.Context, proto string, to netip.AddrPort) error
}

// APIServer is an API server beside the first, which can be lost.
type APIServer interface {
	// Addr is its address, which the certificates of both servers name.
	Addr() netip.AddrPort
	// Unplug takes its host's power, as far as others can see, or returns it.
	Unplug(ctx context.Context, out bool) error
	// Freeze stops its process while the kernel of its host goes on, or lets it go on.
	Freeze(stop bool) error
	// End ends it, also one that was lost.
	End(ctx context.Context) error
}

// skipError is why a case that has begun can not be judged here.
type skipError struct{ reason string }

func (e skipError) Error() string { return "skipped: " + e.reason }

// Skip ends a case that finds that it cannot be judged on this cluster.
func Skip(format string, args ...any) error { return skipError{fmt.Sprintf(format, args...)} }

// skipped returns the reason of an error of skip.
func skipped(err error) (reason string, ok bool) {
	var s skipError
	if errors.As(err, &s) {
		return s.reason, true
	}
	return "", false
}
