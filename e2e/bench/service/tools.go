package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// openLoop runs package openloop's load at the client.
func (g *ground) openLoop(ctx context.Context, l *lane, r reach,
	o openloop.Load) (openloop.Result, error) {
	res, err := o.RunBy(func(text string) ([]byte, error) {
		argv := g.self.Argv("load", text)
		return suite.Output(l.command(ctx, r, argv[0], argv[1:]...))
	})
	if err != nil {
		return openloop.Result{}, err
	}
	return res, sound(res)
}

// sound returns an error if operations failed, or if so many are unfinished that the 99th
// percentile is not exact.
func sound(r openloop.Result) error {
	switch {
	case r.Failed > 0:
		return fmt.Errorf("%d of %d operations failed, the first: %s", r.Failed, r.Failed+r.Done,
			r.Error)
	case r.Done == 0 || r.Unfinished > r.Done/100:
		return fmt.Errorf("%d operations did not end, %d did", r.Unfinished, r.Done)
	}
	return nil
}

const (
	wrkThreads     = 3
	wrkConnections = 99
)

// wrk runs wrk at the client and returns requests per second. With short, each request has a new
// connection.
func (g *ground) wrk(ctx context.Context, l *lane, r reach, short bool,
	d time.Duration) (float64, error) {
	args := []string{"-t", fmt.Sprint(wrkThreads), "-c", fmt.Sprint(wrkConnections), "-d",
		fmt.Sprintf("%ds", int(d.Seconds()))}
	if short {
		args = append(args, "-H", "Connection: close")
	}
	out, err := suite.Output(l.command(ctx, r, "wrk",
		append(args, fmt.Sprintf("http://%s/", l.target(r, 0)))...))
	if err != nil {
		return 0, err
	}
	return parseWrk(string(out))
}

var (
	wrkRate   = regexp.MustCompile(`(?m)^Requests/sec:\s+([0-9.]+)`)
	wrkErrors = regexp.MustCompile(
		`(?m)^\s+Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`)
	wrkStatus = regexp.MustCompile(`(?m)^\s+Non-2xx or 3xx responses: (\d+)`)
)

// parseWrk returns the requests per second in the output of wrk. It ignores read errors, because
// wrk counts a connection that the server closes after its answer as one.
func parseWrk(out string) (perSecond float64, err error) {
	if m := wrkErrors.FindStringSubmatch(out); m != nil && (m[1] != "0" || m[3] != "0" ||
		m[4] != "0") {
		return 0, fmt.Errorf("wrk: %s", strings.TrimSpace(m[0]))
	}
	if m := wrkStatus.FindStringSubmatch(out); m != nil {
		return 0, fmt.Errorf("wrk: %s", strings.TrimSpace(m[0]))
	}
	v, err := number(wrkRate, out)
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("wrk printed no rate: %q", suite.Tail(out, 300))
	}
	return v, nil
}

// pingPong holds the mean and the minimum round trip time of sockperf in microseconds.
type pingPong struct{ mean, least float64 }

// sockperf runs sockperf's ping-pong at the client.
func (g *ground) sockperf(ctx context.Context, l *lane, r reach,
	d time.Duration) (pingPong, error) {
	to := l.target(r, 2)
	for try := 1; ; try++ {
		out, err := suite.Output(l.command(ctx, r, "sockperf", "ping-pong", "--tcp", "--full-rtt",
			"-i", to.Addr().String(), "-p", fmt.Sprint(to.Port()), "-t",
			fmt.Sprint(int(d.Seconds()))))
		if err != nil {
			return pingPong{}, err
		}
		p, err := parseSockperf(string(out))
		// On a busy machine, sockperf's warm-up may leave no time for an observation.
		if err == nil || try == sockperfTries {
			return p, err
		}
	}
}

// sockperfTries is the number of runs after which a sockperf without an observation is an error.
const sockperfTries = 3

var (
	sockperfMean  = regexp.MustCompile(`Summary: Round trip is\s+([0-9.]+) usec`)
	sockperfLeast = regexp.MustCompile(`<MIN> observation =\s+([0-9.]+)`)
)

// parseSockperf returns the round trip times in the output of sockperf.
func parseSockperf(out string) (pingPong, error) {
	mean, err1 := number(sockperfMean, out)
	least, err2 := number(sockperfLeast, out)
	if err1 != nil || err2 != nil || mean <= 0 || least <= 0 {
		return pingPong{}, fmt.Errorf("sockperf printed no round trips: %q", suite.Tail(out, 300))
	}
	return pingPong{mean, least}, nil
}

func number(e *regexp.Regexp, text string) (float64, error) {
	m := e.FindStringSubmatch(text)
	if m == nil {
		return 0, errors.New("number not found")
	}
	return strconv.ParseFloat(m[1], 64)
}

// stream returns the total bandwidth of parallel streams of iperf3 in Mbit/s, with its CPU time.
func (g *ground) stream(ctx context.Context, l *lane, r reach, streams int,
	d time.Duration) (bench.Sample, error) {
	f := load.Flow{To: l.target(r, 3).Addr(), Duration: d,
		Run: func(ctx context.Context, args ...string) ([]byte, error) {
			cmd := l.command(ctx, r, "iperf3", args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, suite.Tail(stderr.String(), 300))
			}
			return out, err
		}}
	return f.TCP(ctx, streams)
}

// needed lists the required programs, and the Debian package of each.
var needed = [][2]string{
	{"ip", "iproute2"}, {"nsenter", "util-linux"}, {"nft", "nftables"},
	{"iptables-restore", "iptables"}, {"wrk", "wrk"}, {"sockperf", "sockperf"}, {"iperf3", "iperf3"},
}

// findPrograms returns an error that lists the missing programs.
func findPrograms(o RunConfig) error {
	var errs []error
	for _, n := range needed {
		if _, err := exec.LookPath(n[0]); err != nil {
			errs = append(errs, fmt.Errorf("no %s: install %s, or run hack/install-deps.sh", n[0],
				n[1]))
		}
	}
	if _, err := exec.LookPath(o.HAProxy); err != nil {
		errs = append(errs, fmt.Errorf("no haproxy at %s: run hack/service/deps.sh", o.HAProxy))
	}
	if _, err := exec.LookPath(o.KubeProxy); err != nil {
		errs = append(errs, fmt.Errorf("no kube-proxy at %s: run `make kubernetes`", o.KubeProxy))
	}
	return errors.Join(errs...)
}
