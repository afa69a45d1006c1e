package site

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

const (
	// h2loadRate is the rate of requests of h2load, pgbenchRate the rate of transactions of pgbench.
	// A connection sends a request of h2load every 20 ms, before TCP acknowledges the last response
	// by itself.
	h2loadRate, pgbenchRate = 1000, 500
	// toolClients is the number of their connections. h2load opens one per millisecond, because it
	// sends at fixed times after a connection is open. Connections that are opened together send
	// all their requests together.
	toolClients = 20
	// portPostgres is PostgreSQL's port.
	portPostgres = 5432
)

// toolGroup is the group of a tool; its part has the same name.
func toolGroup(part string) string { return part + "_latency" }

// unavailable skips a part whose program is missing.
func (s *run) unavailable(part string, err error) error {
	s.Skip(part, fmt.Sprintf("%v: run hack/site/deps.sh", err))
	return nil
}

// h2load measures requests of HTTP/2 in clear text, over connections that stay.
func (s *run) h2load(ctx context.Context) error {
	if _, err := exec.LookPath("h2load"); err != nil {
		return s.unavailable(partH2load, err)
	}
	return s.tool(ctx, partH2load, func(ctx context.Context, l lane, dir string) ([]byte, error) {
		log := filepath.Join(dir, "log")
		_, err := labhost.Output(l.client.Command(ctx, "h2load", "-t1", "-m1",
			"-c", fmt.Sprint(toolClients), "-r1", "--rate-period=1ms",
			fmt.Sprintf("--rps=%d", h2loadRate/toolClients),
			"-n", fmt.Sprint(h2loadRate*s.seconds()), "--log-file="+log,
			fmt.Sprintf("http://%s/", l.at(portHTTP2))))
		if err != nil {
			return nil, err
		}
		return os.ReadFile(log)
	}, parseH2load)
}

// pgbench measures PostgreSQL's SELECT of a row by its key (pgbench -S).
func (s *run) pgbench(ctx context.Context) error {
	bin, err := findPostgres()
	if err != nil {
		return s.unavailable(partPgbench, err)
	}
	for _, n := range []*network{&s.world.clear, &s.world.veil} {
		if err := s.world.postgres(ctx, n, bin); err != nil {
			return err
		}
	}
	return s.tool(ctx, partPgbench, func(ctx context.Context, l lane, dir string) ([]byte, error) {
		to := l.at(portPostgres)
		_, err := labhost.Output(l.client.Command(ctx, filepath.Join(bin, "pgbench"), "-n", "-S",
			"-c", fmt.Sprint(toolClients), "-R", fmt.Sprint(pgbenchRate),
			"-T", fmt.Sprint(s.seconds()), "-l", "--log-prefix="+filepath.Join(dir, "log"),
			"-h", to.Addr().String(), "-p", fmt.Sprint(to.Port()), "-U", "postgres", "postgres"))
		if err != nil {
			return nil, err
		}
		logs, err := filepath.Glob(filepath.Join(dir, "log.*"))
		if err != nil || len(logs) != 1 {
			return nil, fmt.Errorf("pgbench wrote %q: want one log: %w", logs, err)
		}
		return os.ReadFile(logs[0])
	}, parsePgbench)
}

// seconds returns the duration of a sample in whole seconds, at least one.
func (s *run) seconds() int { return max(1, int(s.Sample.Seconds())) }

// tool measures a tool on each lane. do runs it with an empty folder and returns its log, from which
// parse returns the latency of each operation.
func (s *run) tool(ctx context.Context, part string,
	do func(ctx context.Context, l lane, dir string) ([]byte, error),
	parse func(io.Reader) ([]time.Duration, error)) error {
	return s.Interleave(ctx, []bench.Group{s.compared(toolGroup(part), bench.Microsecond, true,
		func(ctx context.Context, l lane) (bench.Sample, error) {
			var times []time.Duration
			err := errNoOperation
			for try := 0; try < tries && errors.Is(err, errNoOperation); try++ {
				times, err = s.timed(ctx, l, do, parse)
			}
			if err != nil {
				return bench.Sample{}, fmt.Errorf("lane %s: %w", l.name, err)
			}
			t := openloop.SumUp(times)
			return bench.Sample{Value: bench.Micros(t.P50), P99: bench.Micros(t.P99)}, nil
		})})
}

// timed runs a tool with an empty folder once, and returns the latency of each operation.
func (s *run) timed(ctx context.Context, l lane,
	do func(ctx context.Context, l lane, dir string) ([]byte, error),
	parse func(io.Reader) ([]time.Duration, error)) ([]time.Duration, error) {
	dir, err := os.MkdirTemp(s.world.dir, "tool-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	log, err := do(ctx, l, dir)
	if err != nil {
		return nil, err
	}
	return parse(bytes.NewReader(log))
}

// errNoOperation is the error of a log without an operation. On a busy machine, a tool may not have
// its connections before its time is over.
var errNoOperation = errors.New("the log has no operation")

// parseH2load returns the times in a log of h2load (--log-file): start, status and time in
// microseconds per line.
func parseH2load(log io.Reader) ([]time.Duration, error) {
	return parseLog(log, 2, func(f []string) error {
		if f[1] != "200" {
			return fmt.Errorf("h2load: a request ended with status %s", f[1])
		}
		return nil
	})
}

// parsePgbench returns the times in a log of pgbench (-l): client, number and time in microseconds,
// which begins when the transaction was due (-R), and further columns.
func parsePgbench(log io.Reader) ([]time.Duration, error) {
	return parseLog(log, 2, func([]string) error { return nil })
}

// parseLog returns the microseconds in a column of each line.
func parseLog(log io.Reader, column int, check func(fields []string) error) ([]time.Duration,
	error) {
	var times []time.Duration
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) <= column {
			return nil, fmt.Errorf("log line %q: want at least %d columns", lines.Text(), column+1)
		}
		if err := check(f); err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(f[column], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("log line %q: %w", lines.Text(), err)
		}
		times = append(times, time.Duration(n)*time.Microsecond)
	}
	if lines.Err() == nil && len(times) == 0 {
		return nil, errNoOperation
	}
	return times, lines.Err()
}

// findPostgres returns the folder of the programs of the newest PostgreSQL of Debian.
func findPostgres() (string, error) {
	all, err := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if err != nil || len(all) == 0 {
		return "", errors.Join(err, errors.New("no pgbench in /usr/lib/postgresql"))
	}
	return filepath.Dir(slices.Max(all)), nil
}

// postgres starts PostgreSQL in the server pod of a network, and fills the tables of pgbench.
func (w *world) postgres(ctx context.Context, n *network, bin string) error {
	data, err := os.MkdirTemp(w.dir, "postgres-")
	if err != nil {
		return err
	}
	// PostgreSQL refuses to run as root.
	if _, err := n.server.Exec(ctx, "chown", "postgres:postgres", data); err != nil {
		return err
	}
	as := []string{"--reuid=postgres", "--regid=postgres", "--clear-groups", "--"}
	if _, err := n.server.Exec(ctx, "setpriv", append(as, filepath.Join(bin, "initdb"),
		"--pgdata="+data, "--username=postgres", "--auth=trust", "--no-sync")...); err != nil {
		return err
	}
	rules, err := os.OpenFile(filepath.Join(data, "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = rules.WriteString("host all all 0.0.0.0/0 trust\n")
		err = errors.Join(err, rules.Close())
	}
	if err != nil {
		return err
	}

	// Shared memory in files of the folder is removed with the folder.
	if _, err := n.server.Start(ctx, "setpriv", append(as, filepath.Join(bin, "postgres"), "-D",
		data, "-c", "listen_addresses=*", "-c", "unix_socket_directories="+data, "-c", "fsync=off",
		"-c", "dynamic_shared_memory_type=mmap")...); err != nil {
		return err
	}
	return lab.Until(ctx, 30*time.Second, func() error {
		_, err := n.server.Exec(ctx, filepath.Join(bin, "pgbench"), "-i", "-q", "-h", data, "-U",
			"postgres", "postgres")
		return err
	})
}
