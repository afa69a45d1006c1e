package framework

import (
	"context"

	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Machines is what lies beneath a cluster: what the API server cannot do. The VM lab has it; a
// cluster that is known by a kubeconfig alone has none, and the cases that need it are skipped for
// that reason.
type Machines interface {
	// Platform is what the nodes are, one of the platforms of e2e/bench.
	Platform() string
	// Exec runs a line of shell as root on a node and returns its standard output.
	Exec(ctx context.Context, node, line string) ([]byte, error)
	// Reboot takes a node's power, gives it back and returns when the node answers; its pods may
	// not run yet.
	Reboot(ctx context.Context, node string) error
	// Join adds a machine by kubeadm join and returns its name; the node may not be Ready yet.
	Join(ctx context.Context) (string, error)
	// Leave drains a node that joined, deletes its Node object and turns the machine off.
	Leave(ctx context.Context, node string) error
	// StopAPI ends the API server; StartAPI starts it again and returns when it is ready.
	StopAPI(ctx context.Context) error
	StartAPI(ctx context.Context) error
	// Oracle listens on the wire outside the nodes.
	Oracle() *leak.Oracle
}
