// Demo shows what Kubeveil is for: the same pods and the same traffic on three nodes, once over
// the reference network in clear and once over Kubeveil, with a sniffer on the wire of
// both. It writes report.html, report.md and result.json into -out and ends with status 1 when
// anything of our network was seen in clear, when the sniffer did not see the
// plaintext of the other one (it would prove nothing), or when something forbidden got through.
// Start reading at show.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench"
	"github.com/kubeveil/kubeveil/e2e/bench/report"
	"github.com/kubeveil/kubeveil/e2e/lab"
)

// limit bounds a run that hangs.
const limit = 10 * time.Minute

// demo is one run of the program.
type demo struct {
	out     string
	start   time.Time
	result  *bench.Result
	report  *report.Report
	ours    *network
	clear   *network
	problem error
}

func main() {
	out := flag.String("out", "out/demo", "directory for report.html, report.md and result.json")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the demonstration did not end within %v", limit))
	defer cancel()
	d := &demo{out: *out, start: time.Now()}
	if err := d.run(ctx); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// say prints a line of progress.
func (d *demo) say(format string, args ...any) {
	fmt.Printf("[%3.0fs] %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) run(ctx context.Context) (err error) {
	root, err := lab.Root()
	if err != nil {
		return err
	}
	if d.result, err = bench.New(bench.Namespaces, root); err != nil {
		return err
	}
	d.report = &report.Report{
		Title:  "The same pods, in clear and behind Kubeveil",
		Lead:   "Three nodes, a pod on each, every pod talking to every other over TCP and UDP, IPv4 and IPv6: once over the reference network, once over Kubeveil. A sniffer on the wire of both looks for what must not be there.",
		Result: d.result, Labels: labels, Notes: notes,
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.show(ctx); err != nil {
		return err
	}
	return d.finish()
}

// show is the demonstration, step by step.
func (d *demo) show(ctx context.Context) (err error) {
	d.say("build two clusters of three nodes: the reference network in clear, and Kubeveil with a real API server")
	if d.clear, err = d.newNetwork(ctx, lab.Clear); err != nil {
		return err
	}
	if d.ours, err = d.newNetwork(ctx, lab.Veil); err != nil {
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
	d.result.Leaks = &bench.Leaks{Frames: ours.Frames, Plaintext: ours.Plaintext, ControlPlaintext: control.Plaintext}
	d.say("sniffers: %d frames of ours, %d in clear; %d frames of the reference network, %d in clear", ours.Frames, ours.Plaintext, control.Frames, control.Plaintext)
	outcome := "nothing but what is allowed"
	if err := ours.Err(); err != nil {
		outcome, d.problem = err.Error(), err
	}
	d.result.Gates = append(d.result.Gates,
		bench.Exactly("our network, in clear", int(ours.Plaintext), 0, "frames"),
		bench.Gate{Name: "our network, every frame", Want: "tunnel, neighbour discovery, or the API server", Got: outcome, OK: ours.Err() == nil},
		bench.Gate{Name: "reference network, in clear (the sniffer can see)", Want: "more than 0 frames", Got: fmt.Sprintf("%d frames", control.Plaintext), OK: control.Plaintext > 0})
	for i, n := range []*network{d.clear, d.ours} {
		n.capture.Verdict = []string{"Every payload can be read by whoever sits on the wire.", "Between nodes there is WireGuard and nothing else: who talks to whom, and what, is not on the wire."}[i]
		d.report.Sides = append(d.report.Sides, n.capture)
	}
	return nil
}

// finish writes the results; the error names what should not have been.
func (d *demo) finish() error {
	if err := os.MkdirAll(d.out, 0o755); err != nil {
		return err
	}
	md, err := os.Create(filepath.Join(d.out, "report.md"))
	if err != nil {
		return err
	}
	defer md.Close()
	page := filepath.Join(d.out, "report.html")
	err = errors.Join(d.result.Write(filepath.Join(d.out, "result.json")), d.report.WriteHTML(page), d.report.Markdown(md), d.report.Terminal(os.Stdout))
	if err != nil {
		return err
	}
	d.say("open %s in a browser: it shows the frames of both networks next to each other", page)
	err = d.problem
	for _, g := range d.result.Missed() {
		err = errors.Join(err, fmt.Errorf("%s: want %s, got %s", g.Name, g.Want, g.Got))
	}
	for _, r := range d.report.Refused {
		if !r.OK {
			err = errors.Join(err, fmt.Errorf("%s: want %s, got %s", r.What, r.Want, r.Got))
		}
	}
	return err
}

// close removes both clusters.
func (d *demo) close() error {
	var errs []error
	for _, n := range []*network{d.clear, d.ours} {
		if n != nil {
			errs = append(errs, n.close())
		}
	}
	return errors.Join(errs...)
}
