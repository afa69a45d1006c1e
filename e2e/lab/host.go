package lab

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
)

// Host is a host at the bridge. Its methods may be called from several goroutines.
type Host struct {
	*labhost.Host

	lab   *Lab
	ports []string // names of the host's ports at the bridge
	// shown reports whether Control.Host returned this host to a test. filtered reports whether
	// rules of filter are in force.
	shown, filtered atomic.Bool
}

// Process is a program that runs in a host or a pod until it is signalled to end.
type Process = labhost.Process

// newHost starts a host. If the host's disk exists, it is kept.
func (l *Lab) newHost(ctx context.Context, name string) (*Host, error) {
	h := &Host{Host: &labhost.Host{Name: name, Dir: filepath.Join(l.Dir, name),
		Tools: l.Program("veil-tools"), Env: l.env()}, lab: l}
	if err := h.Make(ctx); err != nil {
		return nil, err
	}
	return h, nil
}

// env returns the variables that are added to the environment of all programs in the lab.
func (l *Lab) env() []string { return []string{traffic.CanaryEnv + "=" + l.Canary} }

// Kit returns the paths and canaries that tools in the host need.
func (h *Host) Kit() traffic.Kit {
	return traffic.Kit{Tools: h.Tools, Canary: h.lab.Canary, EgressCanary: h.lab.EgressCanary,
		Authority: authorityFile}
}

// String returns the name.
func (h *Host) String() string { return h.Name }

// stop ends the host and everything in it, and removes its ports at the bridge. The disk stays. It
// may be called again.
func (h *Host) stop() error { return errors.Join(h.Halt(), h.unplug()) }

// unplug removes the host's links to the bridge.
func (h *Host) unplug() error {
	ports := h.ports
	h.ports = nil
	return h.lab.unplug(ports)
}
