package agent

import (
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/pkg/agent/podkeeper"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Steps of readiness.
const (
	stepGuard = "guard in force"
	stepApply = "first apply done"
)

// Dependencies are what an Agent is made from.
type Dependencies struct {
	Config config.Config
	// Reload reads and checks the configuration again; nil when it cannot change.
	Reload  func() (config.Config, error)
	Version string
	Log     *slog.Logger
}

// Agent is the daemon of one node. Make one with New, then call Run once. New sets its fields, and
// none changes after that, except those that synchronise themselves (kernel, guardCounts and view).
// Only the loop uses host.
type Agent struct {
	log     *slog.Logger
	version string
	started time.Time
	reload  func() (config.Config, error)

	// key is the one of the start, made at keyMade.
	key     wgkey.Private
	keyMade time.Time
	guard   *guard.Guard
	host    *hostnet.Host
	tunnels *tunnel.Manager
	pods    *podkeeper.Keeper
	source  source.Source
	kube    *kube.Client // nil for other sources
	// features plug into the agent, in the order in which they begin.
	features []feature.Feature
	table    *source.Writer
	health   *telemetry.Health
	metrics  *telemetry.Metrics
	// adminSocket and metricsSocket are open from New on; metricsSocket is nil when there is none.
	adminSocket, metricsSocket net.Listener

	wake   chan struct{}
	kernel kernelChanges
	// showGuard shows the guard; a test has its own.
	showGuard func() (telemetry.Guard, error)
	// guardCounts are the guard's counters as Status last saw them. It has a lock of its own.
	guardCounts guardCounts

	view atomic.Pointer[view]
}

// poke wakes the loop; several pokes before a turn count as one.
func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

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
