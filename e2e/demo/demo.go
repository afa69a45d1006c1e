// Package demo shows what Kubeveil is for: the same pods and the same traffic on three nodes, once
// over a reference network in clear and once over Kubeveil, with a sniffer on the wire of both.
// On request Kubeveil's nodes have a real API server, services and a NetworkPolicy.
//
// A gate is missed if traffic of Kubeveil's network was seen in clear. A gate is also missed if the
// sniffer saw no plaintext of the reference network, because then the sniffer proves nothing. The
// report lists each forbidden attempt, and whether it was blocked. Start reading at show.
package demo

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// demo is one run.
type demo struct {
	// api reports whether Kubeveil's nodes have an API server. Without an API server they read
	// snapshot files.
	api    bool
	say    func(format string, args ...any)
	result *bench.Result
	report *report.Report
	ours   *network
	clear  *network
	// beside is a cluster on wireguard-go for comparison. It is nil if the kernel serves the
	// tunnels. userspace reports whether veil-wg serves the tunnels.
	beside *network
	// other is the other cluster, linked with ours. It is nil without an API server. making makes
	// it beside other steps.
	other     *network
	making    errgroup.Group
	userspace bool
	// problem is the error of the sniffer, if it saw forbidden traffic.
	problem error
}

// Run runs the demonstration and returns the report. If the sniffer saw forbidden traffic, it
// returns both the report and an error. If a step failed, it returns no report. It needs root and
// the programs of make build. root is the root of the repository, whose commit the result names.
// api reports whether Kubeveil's nodes have an API server. Without an API server they read snapshot
// files. progress prints a line per step.
func Run(ctx context.Context, root string, api bool, progress func(format string, args ...any)) (
	rep *report.Report, err error) {
	d := &demo{api: api, say: progress}
	if d.result, err = bench.New(bench.Namespaces, root); err != nil {
		return nil, err
	}
	d.report = &report.Report{
		Title: "The same pods, in clear and behind Kubeveil",
		Lead:  lead(d.api), RefusedWhat: "forbidden attempts",
		Result: d.result, Labels: labels, Notes: d.notes(),
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.show(ctx); err != nil {
		return nil, err
	}
	return d.report, d.problem
}

// lead returns the first sentences of the report.
func lead(api bool) string {
	services := ""
	if api {
		services = ", and there to a service too, and to one of another cluster"
	}
	return "Three nodes, a pod on each, every pod talking to every other over TCP and UDP, IPv4 " +
		"and IPv6: " +
		"once over the reference network, once over Kubeveil" + services + ". " +
		"A sniffer on both wires looks for frames that must not be there."
}

// show runs the steps of the demonstration.
func (d *demo) show(ctx context.Context) (err error) {
	how := "Kubeveil, whose nodes read snapshot files"
	if d.api {
		how = "Kubeveil with a real API server"
	}

	d.say("build two clusters of three nodes: the reference network in clear, and %s", how)
	if d.clear, err = d.newNetwork(ctx, lab.Clear); err != nil {
		return err
	}
	if d.ours, err = d.newNetwork(ctx, lab.Veil); err != nil {
		return err
	}
	if err := d.noteTunnel(ctx); err != nil {
		return err
	}

	if d.api {
		d.making.Go(func() (err error) {
			d.other, err = d.newOther(ctx)
			return err
		})
	}
	for _, n := range []*network{d.clear, d.ours} {
		if err := d.talk(ctx, n); err != nil {
			return err
		}
	}

	if err := d.refused(ctx); err != nil {
		return err
	}
	if err := d.judge(); err != nil {
		return err
	}

	if err := d.unlink(); err != nil {
		return err
	}
	return d.measure(ctx)
}

// judge stops both oracles and adds the gates about their results.
func (d *demo) judge() error {
	ours, err := d.ours.lab.Oracle.Stop()
	if err != nil {
		return err
	}
	control, err := d.clear.lab.Oracle.Stop()
	if err != nil {
		return err
	}

	d.result.Leaks = &bench.Leaks{Frames: ours.Frames, Plaintext: ours.Plaintext,
		ControlPlaintext: control.Plaintext}
	d.say("sniffers: %d frames of ours, %d in clear; %d frames of the reference network, "+
		"%d in clear", ours.Frames, ours.Plaintext, control.Frames, control.Plaintext)
	outcome, allowed := "only allowed frames", "tunnel or neighbour discovery"
	if d.api {
		allowed = "tunnel, neighbour discovery, or the API server"
	}
	if err := ours.Err(); err != nil {
		outcome, d.problem = err.Error(), err
	}

	d.result.Gates = append(d.result.Gates,
		bench.Exactly("our network, in clear", int(ours.Plaintext), 0, "frames"),
		bench.Gate{Name: "our network, every frame", Want: allowed, Got: outcome,
			OK: ours.Err() == nil},
		bench.Gate{Name: "reference network, in clear (shows that the sniffer works)",
			Want: "more than 0 frames", Got: fmt.Sprintf("%d frames", control.Plaintext),
			OK: control.Plaintext > 0})

	for i, n := range []*network{d.clear, d.ours} {
		n.capture.Verdict = []string{"An observer of the wire can read every payload.",
			"Between nodes there is only WireGuard. An observer of the wire cannot read which " +
				"pods talk or what they send, but can see which nodes talk, when and how much."}[i]
		d.report.Sides = append(d.report.Sides, n.capture)
	}
	if d.other != nil {
		d.report.Sides = append(d.report.Sides, d.other.capture)
	}

	return nil
}

// close removes the clusters.
func (d *demo) close() error {
	_ = d.making.Wait() // linked returns its error
	var errs []error
	// The other cluster is on the network of ours.
	for _, n := range []*network{d.other, d.clear, d.ours, d.beside} {
		if n != nil {
			errs = append(errs, n.close())
		}
	}
	return errors.Join(errs...)
}
