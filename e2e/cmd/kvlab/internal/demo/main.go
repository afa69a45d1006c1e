// Package demo shows what Kubeveil is for: the same pods and the same traffic on three nodes, once
// over the reference network in clear and once over Kubeveil, with a sniffer on the wire of both.
// With -api Kubeveil's nodes have a real API server, services and a NetworkPolicy. It writes
// report.html, report.md and result.json into -out and ends with status 1 when anything of our
// network was seen in clear, when the sniffer did not see the plaintext of the other one (it would
// prove nothing), or when something forbidden got through. Start reading at show.
package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// limit bounds a run that hangs.
const limit = 10 * time.Minute

// demo is one run of the program.
type demo struct {
	out string
	// api reports whether Kubeveil's nodes have an API server; without one they read snapshot
	// files.
	api    bool
	say    func(format string, args ...any)
	result *bench.Result
	report *report.Report
	ours   *network
	clear  *network
	// beside is a cluster on wireguard-go, if userspace reports that tunnels are not in the kernel.
	beside    *network
	userspace bool
	problem   error
}

const usage = `kvlab demo shows the same pods and the same traffic on three nodes in namespaces, in
clear and behind Kubeveil, in about a minute.

Usage: kvlab demo [flags]

Example:
  kvlab demo -out /tmp/demo        report.html, report.md and result.json go there
  kvlab demo -api                  with an API server, services, a NetworkPolicy and forged
                                   objects, once make kubernetes has built it

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := flag.NewFlagSet("kvlab demo", flag.ContinueOnError)
	out := flags.String("out", "out/demo",
		"`folder` for report.html, report.md and result.json; emptied first")
	api := flags.Bool("api", false,
		"give Kubeveil a real API server, services and a NetworkPolicy; without it nodes read "+
			"snapshot files")
	return program.Command("show the same traffic in clear and behind Kubeveil",
		flags, usage, func() (program.Run, error) {
			d := &demo{out: *out, api: *api, say: program.Progress(os.Stdout)}
			return program.Within(limit, d.run), nil
		})
}

func (d *demo) run(ctx context.Context) (err error) {
	if d.out, err = program.Folder(d.out); err != nil {
		return err
	}
	root, err := lab.Root()
	if err != nil {
		return err
	}
	if d.result, err = bench.New(bench.Namespaces, root); err != nil {
		return err
	}
	d.report = &report.Report{
		Title: "The same pods, in clear and behind Kubeveil",
		Lead:  lead(d.api), RefusedWhat: "forbidden attempts",
		Result: d.result, Labels: labels, Notes: d.notes(),
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.show(ctx); err != nil {
		return err
	}
	return d.finish()
}

// lead returns the first sentences of the page.
func lead(api bool) string {
	services := ""
	if api {
		services = ", and there to a service too"
	}
	return "Three nodes, a pod on each, every pod talking to every other over TCP and UDP, IPv4 " +
		"and IPv6: " +
		"once over the reference network, once over Kubeveil" + services + ". " +
		"A sniffer on the wire of both looks for what must not be there."
}

// show is the demonstration, step by step.
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

	return d.measure(ctx)
}

// judge ends both oracles and compares what they saw.
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
	outcome, allowed := "nothing but what is allowed", "tunnel or neighbour discovery"
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
		bench.Gate{Name: "reference network, in clear (the sniffer can see)",
			Want: "more than 0 frames", Got: fmt.Sprintf("%d frames", control.Plaintext),
			OK: control.Plaintext > 0})

	for i, n := range []*network{d.clear, d.ours} {
		n.capture.Verdict = []string{"An observer of the wire can read every payload.",
			"Between nodes there is WireGuard and nothing else: which pods talk, and what, is not " +
				"on the wire. Which nodes talk, when and how much, is."}[i]
		d.report.Sides = append(d.report.Sides, n.capture)
	}

	return nil
}

// finish writes the results; the error names what should not have been.
func (d *demo) finish() error {
	err := program.Finish(d.out, d.report, os.Stdout)
	d.say("open %s in a browser: it shows the frames of both networks next to each other",
		filepath.Join(d.out, "report.html"))
	return errors.Join(d.problem, err)
}

// close removes the clusters.
func (d *demo) close() error {
	var errs []error
	for _, n := range []*network{d.clear, d.ours, d.beside} {
		if n != nil {
			errs = append(errs, n.close())
		}
	}
	return errors.Join(errs...)
}
