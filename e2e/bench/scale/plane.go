package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/e2e/scale/apiwrite"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// plane is a real API server with etcd, whose data is in memory: the control plane of a lab without
// nodes. It has the services of the largest size, and no endpoints of them. The children of its
// parts run in its host.
type plane struct {
	lab    *lab.Lab
	writer *apiwrite.Writer
	self   suite.Self
	// config is the path of the kubeconfig of an administrator.
	config string
	// services is the number of services of the shape.
	services int
}

// serviceRange has room for the services of a million endpoints. Its first address is also the
// first of the lab's range, which the certificate of the API server names.
const serviceRange = "198.18.128.0/17"

// plane returns the API server of the run. The first call makes it.
func (s *run) plane(ctx context.Context) (*plane, error) {
	if s.real != nil {
		return s.real, nil
	}
	began := time.Now()
	l, err := lab.New(ctx, lab.Options{Nodes: -1, Family: lab.IPv4, Offloads: true,
		Streams: true,
		APIServerFlags: func(int) []string {
			return []string{"--service-cluster-ip-range=" + serviceRange}
		}})
	if err != nil {
		return nil, err
	}
	shape := shapeOf(kindTCP, s.largest())
	p := &plane{lab: l, self: s.self, services: shape.Services()}
	s.real = p // set now, so that Close ends the lab after an error
	if p.writer, err = apiwrite.New(l.Control.Config); err != nil {
		return nil, err
	}
	if p.config, err = l.Control.WriteKubeconfig(ctx, "", ""); err != nil {
		return nil, err
	}

	services := make([]*corev1.Service, p.services)
	for i := range services {
		services[i] = shape.Service(i)
	}
	if err := errors.Join(apiwrite.SendAll(ctx, p.writer, apifeed.Namespaces()),
		apiwrite.SendAll(ctx, p.writer, services)); err != nil {
		return nil, err
	}
	s.Progress("a real API server has %d services after %.1f s", len(services),
		time.Since(began).Seconds())
	return p, nil
}

// slicesOf returns the requests that create the slices of a shape.
func slicesOf(shape apifeed.Shape) (all []apiwrite.Request, err error) {
	for i := range shape.Services() {
		requests, err := apiwrite.CreateAll(shape.Slices(i))
		if err != nil {
			return nil, err
		}
		all = append(all, requests...)
	}
	return all, nil
}

// clear deletes the slices of all shapes.
func (p *plane) clear(ctx context.Context) error {
	return p.writer.Send(ctx, apiwrite.DeleteSlices())
}

// argv returns the command line of a child for n endpoints. last is its last argument.
func (p *plane) argv(verb string, n int, last string) []string {
	return p.self.Argv(verb, kindTCP, strconv.Itoa(n), p.config, last)
}

// measure measures a side of a list once, in a new process in the host of the API server.
func (p *plane) measure(ctx context.Context, side string, n int,
	profile string) (f figures, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, sideLimit, errors.New("it did not end"))
	defer cancel()
	spent, err := p.spent()
	if err != nil {
		return f, err
	}
	argv := p.argv(side, n, profile)
	out, err := p.lab.Control.Host().Exec(ctx, argv[0], argv[1:]...)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(out, &f); err != nil {
		return f, fmt.Errorf("figures %q: %w", out, err)
	}
	return f, spent(&f)
}

// spent returns a function that sets in f the CPU time that the control plane has spent since.
func (p *plane) spent() (func(f *figures) error, error) {
	read := func() (server, etcd time.Duration, err error) {
		server, err = load.ProcessCPU(p.lab.Control.APIServer.PID())
		if err == nil {
			etcd, err = load.ProcessCPU(p.lab.Control.Etcd().PID())
		}
		return server, etcd, err
	}
	server, etcd, err := read()
	return func(f *figures) error {
		serverNow, etcdNow, err := read()
		f.Server, f.Etcd = bench.Millis(serverNow-server), bench.Millis(etcdNow-etcd)
		return err
	}, err
}
