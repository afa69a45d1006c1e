package agent

import (
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/pkg/agent/podkeeper"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/drop/dropwatch"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Steps that must be done before the agent is ready; see telemetry.Health.
const (
	stepGuard = "guard in force"
	stepApply = "first apply done"
)

// Dependencies are the parts from which New makes an Agent.
type Dependencies struct {
	Config config.Config
	// Reload reads and checks the configuration again. Nil means that it never changes.
	Reload  func() (config.Config, error)
	Version string
	Log     *slog.Logger
}

// Agent is the daemon of one node. Make it with New, then call Run once. No field changes after
// New, except kernel, drops and view, which are safe for concurrent use. Only the loop uses
// host.
type Agent struct {
	log     *slog.Logger
	version string
	started time.Time
	reload  func() (config.Config, error)

	// key is the private key at the start of veild. keyMade is when it was made.
	key     wgkey.Private
	keyMade time.Time
	guard   *guard.Guard
	host    *hostnet.Host
	tunnels *tunnel.Manager
	pods    *podkeeper.Keeper
	source  source.Source
	kube    *kube.Client // nil for other sources
	// features are called in this order.
	features []feature.Feature
	// openedInForce is called when the guard enforces what Opened of the features returned. It is
	// nil without features.
	openedInForce func()
	table         *source.Writer
	health        *health.Health
	metrics       *telemetry.Metrics
	// New opens adminSocket and metricsSocket. metricsSocket is nil if no address is configured.
	adminSocket, metricsSocket net.Listener

	wake   chan struct{}
	kernel kernelChanges
	// showGuard returns the status of the guard. Tests replace it.
	showGuard func() (telemetry.Guard, error)
	// drops holds the guard's counters as they were last read. It has its own lock.
	drops dropwatch.Watch
	// readings is the number of readings of the status that have not ended.
	readings atomic.Int32

	view atomic.Pointer[view]
}

// poke makes the loop run a turn soon. Several calls before that turn cause only one turn.
func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// logOps logs operations, at most 20.
func logOps[T fmt.Stringer](log *slog.Logger, what string, ops []T) {
	const shown = 20
	for i, op := range ops {
		if i == shown {
			log.Info(what, "more", len(ops)-shown)
			return
		}
		log.Info(what, "op", op.String())
	}
}
