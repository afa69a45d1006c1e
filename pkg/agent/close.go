package agent

import (
	"errors"
	"log/slog"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
)

// CloseNode puts the guard and the unreachable routes in force and nothing
// else: for a unit that runs at boot before the network does, when no veild has
// run yet and processes of the host could reach pods of other nodes in clear.
// It needs no API server, and changes nothing on a node where veild has run
// since boot. It closes what it can: the error may be about a link alone.
func CloseNode(cfg config.Config, log *slog.Logger) (err error) {
	if err := checkMachine(cfg); err != nil {
		return err
	}

	g, err := guard.Open(abi.BPFDir, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	have, err := g.Read()
	if err != nil {
		return err
	}

	d := closing(cfg, have)
	if _, err := g.Apply(d.guard); err != nil {
		return err
	}
	defer func() {
		for _, link := range g.Unguarded() {
			err = errors.Join(err, errors.New(link))
		}
	}()

	h, err := hostnet.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	routing, err := h.Read()
	if err != nil || len(routing.Devices) > 0 {
		return err
	}

	ops, err := h.Sync(hostnet.Plan(d.host))
	logOps(log, "routing changed", ops)
	return err
}

// closing is what a node is closed with: what the configuration says, and what veild has learned
// since boot, addresses of nodes and of services.
func closing(cfg config.Config, have *guard.State) decision {
	d := decide(inputs{cfg: cfg, vips: have.VIPs})
	d.guard.NodeAddrs = have.Nodes
	return d
}
