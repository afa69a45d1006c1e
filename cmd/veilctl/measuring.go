package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/report"
	"github.com/kubeveil/kubeveil/e2e/framework"
)

// measuring is what measurements of a cluster have in common: which cluster, how long a sample takes, and where the report goes.
type measuring struct {
	kubeconfig, image, out string
	seconds                int
}

// register adds the flags; out is the usual folder, sample what a sample is of.
func (m *measuring) register(fs *flag.FlagSet, out, sample string) {
	fs.StringVar(&m.kubeconfig, "kubeconfig", "", "`file` with the cluster (default: what kubectl would take)")
	fs.StringVar(&m.image, "image", framework.ToolsImage, "`image` of the suite's tools, which the nodes must have or can pull")
	fs.StringVar(&m.out, "out", out, "`folder` for result.json, report.html and report.md")
	fs.IntVar(&m.seconds, "seconds", 10, sample)
}

// secondsFit is whether a sample is neither too short nor too long.
func (m *measuring) secondsFit() bool { return m.seconds >= 1 && m.seconds <= 600 }

// run opens the cluster, has it measured, and writes and prints the report, also one that came with an error. errWrong when a gate was missed.
func (m *measuring) run(c call, measure func(k *framework.Cluster, progress func(format string, args ...any)) (*report.Report, error)) error {
	began := time.Now()
	k, err := framework.Open(c.ctx, m.kubeconfig, framework.Options{Image: m.image})
	if err != nil {
		return err
	}
	rep, err := measure(k, func(format string, args ...any) {
		fmt.Fprintf(c.progress, "[%5.0fs] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	})
	if rep == nil {
		return err
	}
	return errors.Join(m.write(c, rep), err)
}

func (m *measuring) write(c call, rep *report.Report) error {
	if err := errors.Join(os.MkdirAll(m.out, 0o755), rep.WriteAll(m.out)); err != nil {
		return err
	}
	var err error
	if c.json {
		err = printJSON(c.out, rep.Result)
	} else {
		err = rep.Terminal(c.out)
		fmt.Fprintf(c.out, "written to %s\n", m.out)
	}
	if err == nil && len(rep.Result.Missed()) > 0 {
		err = errWrong
	}
	return err
}
