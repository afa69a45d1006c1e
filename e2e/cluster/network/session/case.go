package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Need is a requirement of a case beyond a kubeconfig. Its text completes "needs …".
type Need string

// Needs.
const (
	// Machines means that the run has a Lab, which gives access to the machines.
	Machines Need = "the machines beneath the cluster"
	// TwoWorkers means at least two nodes that take pods.
	TwoWorkers Need = "two nodes that take pods"
	// Outside means a host with an echo server that does not belong to the cluster.
	Outside Need = "a host outside the cluster"
	// Fresh means a new cluster without a network that no other test uses.
	Fresh Need = "a cluster of the suite's own without a network"
)

// Case is a test of a cluster.
type Case struct {
	// Name consists of lower-case words joined by hyphens.
	Name string
	// About describes in one sentence what the case shows.
	About string
	Needs []Need
	// Limit is the time limit of the case on usual machines.
	Limit time.Duration
	// Long is the reason why the case is left to the full run, or empty.
	Long string
	// Beyond is the reason why the case is not part of the core run, or empty.
	Beyond string
	// Always means that the case runs even if Match does not select it, because other cases build
	// on it.
	Always bool
	// Breaks means that later cases are skipped if the case fails.
	Breaks bool
	Run    func(ctx context.Context, s *Session) error
}

// Lab is the interface to a cluster that the run made itself, for operations that the API server
// does not offer. A run on an existing cluster has no Lab, and skips the cases that need one.
type Lab interface {
	// Platform returns the platform of the nodes, one of pkg/bench's.
	Platform() string
	// Exec runs a shell command as root on a node and returns its standard output.
	Exec(ctx context.Context, node, line string) ([]byte, error)
	// Reboot cuts a node's power, restores it and returns once the node answers. Its pods may not
	// run yet.
	Reboot(ctx context.Context, node string) error
	// Join adds a machine by kubeadm join and returns its name. The node may not be Ready yet.
	Join(ctx context.Context) (string, error)
	// Leave drains a node that joined, deletes its Node object and turns the machine off.
	Leave(ctx context.Context, node string) error
	// StopAPI ends the API server. StartAPI starts it again and returns once it is ready.
	StopAPI(ctx context.Context) error
	StartAPI(ctx context.Context) error
	// SecondAPI starts another API server of the cluster on its own host, which is not a node. It
	// returns once the server is ready and listed in the service kubernetes.
	SecondAPI(ctx context.Context) (APIServer, error)
	// Oracle returns the leak oracle, which listens on the wire outside of the nodes.
	Oracle() *leak.Oracle
	// Clear installs the reference network, which does not encrypt, on the nodes. Unclear removes
	// it without a trace.
	Clear(ctx context.Context) error
	Unclear(ctx context.Context) error
	// UseHostPrograms makes the control plane's host, a node without a kubelet, start the programs
	// of Kubeveil in the folder dir when a DaemonSet changes. An empty dir means the programs of
	// this tree.
	UseHostPrograms(dir string)
	// OutsideAddrs returns the addresses of a host outside the cluster with an echo server at
	// remote.EchoPort, IPv4 first. ControlAddrs returns the addresses of the control plane's host,
	// a node without pods that also has an echo server there.
	OutsideAddrs() []netip.Addr
	ControlAddrs() []netip.Addr
	// OutsideCanary returns the canary of payloads that may leave the cluster.
	OutsideCanary() string
	// OutsideSend sends messages with that canary from the host outside to an echo server. It
	// returns an error unless all come back.
	OutsideSend(ctx context.Context, proto string, to netip.AddrPort) error
}

// APIServer is a second API server, which cases can make fail.
type APIServer interface {
	// Addr returns its address, which the certificates of both servers name.
	Addr() netip.AddrPort
	// Unplug cuts its host off the network if out is set, as if it had lost power. Otherwise it
	// connects the host again.
	Unplug(ctx context.Context, out bool) error
	// Freeze stops its process if stop is set, while the kernel of its host continues. Otherwise it
	// continues the process.
	Freeze(stop bool) error
	// End ends the server in any state.
	End(ctx context.Context) error
}

// skipError is the reason why a case that has begun is skipped.
type skipError struct{ reason string }

func (e skipError) Error() string { return "skipped: " + e.reason }

// Skip returns the error with which a case ends that cannot be judged on this cluster.
func Skip(format string, args ...any) error { return skipError{fmt.Sprintf(format, args...)} }

// skipped returns the reason if err is an error of Skip.
func skipped(err error) (reason string, ok bool) {
	s, ok := errors.AsType[skipError](err)
	return s.reason, ok
}
