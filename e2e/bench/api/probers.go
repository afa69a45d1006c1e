package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/bench/api/faultlab"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
	cpu "github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const (
	// probedPath is the path that clients request from a probed server, which reads it from etcd.
	probedPath = "/api/v1/namespaces/default"
	// probedRate is the rate of these requests, GET/s.
	probedRate = 100
)

// Cases of part probers: the cost of a large cluster's probes for one API server.
const (
	caseProbersP99    = "probers_p99"
	caseProbersCPU    = "probers_processor"
	caseProbersMemory = "probers_memory"
	caseProbersSilent = "probers_silent"
)

// probed holds one measurement of a server.
type probed struct {
	p99 float64 // of GETs, microseconds
	cpu float64 // of the server, percent of a core
	mib float64 // of the server
}

// probers measures an API server without probes, and then with the probes of s.Probers nodes.
func (s *run) probers(ctx context.Context) error {
	return s.inLab(ctx, lab.IPv4, func(ctx context.Context, b *faultlab.Lab) error {
		if err := b.Good(ctx); err != nil {
			return err
		}
		server := b.Cluster.Control.APIServer
		if err := client.MoreFiles(server.PID(), s.Probers); err != nil {
			return err
		}
		if err := b.Cluster.Control.Host().Sysctl("net/ipv4/ip_local_port_range",
			"10000 65000"); err != nil {
			return err
		}
		alone, err := s.measureProbed(ctx, b, server)
		if err != nil {
			return fmt.Errorf("without probers: %w", err)
		}
		s.Progress("without probers: %.1f %% of a core, P99 %.0f µs", alone.cpu, alone.p99)

		p, err := b.Child(ctx, b.Cluster.Control.Host(), "probe",
			b.Cluster.Control.ServerAddr(0).String(), strconv.Itoa(s.Probers))
		if err != nil {
			return err
		}
		if err := p.WaitLine(ctx, client.LineHeld, s.joining()); err != nil {
			return err
		}
		with, err := s.measureProbed(ctx, b, server)
		if err != nil {
			return fmt.Errorf("with %d probers: %w", s.Probers, err)
		}
		s.Progress("with %d probers: %.1f %% of a core, P99 %.0f µs", s.Probers, with.cpu, with.p99)

		var sum client.Tally
		if err := p.Result(ctx, &sum); err != nil {
			return err
		}
		return s.addProbed(alone, with, sum)
	})
}

// joining bounds the wait until all probers had an answer.
func (s *run) joining() time.Duration {
	return 3*time.Minute + 4*time.Duration(s.Probers)*client.ProberPause
}

// measureProbed loads the server with GETs and measures it meanwhile. The clients are in the
// server's namespace, because the lab's network inspects each frame and would be measured too.
func (s *run) measureProbed(ctx context.Context, b *faultlab.Lab,
	server *lab.Process) (m probed,
	err error) {
	l, err := json.Marshal(client.Load{Dir: b.Dir,
		To:          []netip.AddrPort{b.Cluster.Control.ServerAddr(0)},
		Connections: connections, Rate: probedRate, Warm: warm, Duration: s.Steady, Path: probedPath})
	if err != nil {
		return m, err
	}
	self, err := suite.NewSelf(Suite)
	if err != nil {
		return m, err
	}
	argv := self.Argv("load", string(l))

	began := time.Now()
	before, err := cpu.ProcessCPU(server.PID())
	if err != nil {
		return m, err
	}
	text, err := b.Cluster.Control.Host().Exec(ctx, argv[0], argv[1:]...)
	if err != nil {
		return m, err
	}
	after, err := cpu.ProcessCPU(server.PID())
	if err != nil {
		return m, err
	}
	took := time.Since(began)

	var o client.Outcome
	if err := json.Unmarshal(text, &o); err != nil {
		return m, fmt.Errorf("read the clients' output: %w", err)
	}
	if err := o.Sound(); err != nil {
		return m, err
	}
	m = probed{p99: bench.Micros(o.P99), cpu: 100 * (after - before).Seconds() / took.Seconds()}
	m.mib, err = cpu.ResidentMiB(server.PID())
	return m, err
}

// addProbed adds the cases of part probers. sum is the tally of the probers.
func (s *run) addProbed(alone, with probed, sum client.Tally) error {
	title := fmt.Sprintf("An API server that %d nodes probe: ", s.Probers)
	for _, c := range []struct {
		name, label string
		unit        bench.Unit
		with, alone float64
	}{
		{caseProbersP99, fmt.Sprintf("P99 of %d GET/s", probedRate), bench.Microsecond, with.p99,
			alone.p99},
		{caseProbersCPU, "its CPU, of a core", bench.Percent, with.cpu, alone.cpu},
		{caseProbersMemory, "its memory", bench.MiB, with.mib, alone.mib},
	} {
		if err := s.Compare(c.name, title+c.label, c.unit, []float64{c.with}, []float64{c.alone},
			"without probers"); err != nil {
			return err
		}
	}
	s.Add(caseProbersSilent, title+"times that a prober found it silent", bench.Count,
		float64(sum.Failed))
	return nil
}
