package bpfmaps

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// The main goroutine keeps the process's first thread, which cannot end: a test
// that unshares must not get it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if os.Getenv(handsEnv) != "" {
		os.Exit(handsMain())
	}
	os.Exit(nettest.Run(m))
}

// config returns the configuration of a table for one test, in a bpffs of its own. The maps of the
// guard that programs at sockets use are there.
func config(t testing.TB) Config {
	t.Helper()
	dir := nettest.BPFFS(t) + "/kubeveil"
	errtest.Must(t, os.Mkdir(dir, 0o700))
	spec, err := bpf.LoadServiceSocket()
	errtest.Must(t, err)
	for name, m := range spec.Maps {
		if strings.HasPrefix(name, PinPrefix) || strings.HasPrefix(name, ".") {
			continue
		}
		guards, err := ebpf.NewMap(m)
		errtest.Must(t, err)
		errtest.Must(t, guards.Pin(filepath.Join(dir, name)))
		errtest.Must(t, guards.Close())
	}
	return Config{
		Dir: dir, Limits: servicetest.Limits, Log: servicetest.Quiet(),
		Memory: Memory{Clients: 1024, Outside: 1024, Replies: 1024, Sends: 1024, TCP: 1024,
			Opening: 1024, UDP: 1024, Quotas: 1024},
	}
}

// node holds a table and its planner, as the daemon does.
type node struct {
	*Table
	*planner.Planner
}

// start opens, fills and attaches a table as the daemon does at its start.
func start(t testing.TB, c Config, fill func(*planner.Planner)) node {
	t.Helper()
	return startOn(t, opened(t, c), fill)
}

// opened opens a table.
func opened(t testing.TB, c Config) *Table {
	t.Helper()
	table, err := Open(c)
	errtest.Must(t, err)
	return table
}

func startOn(t testing.TB, table *Table, fill func(*planner.Planner)) node {
	t.Helper()
	t.Cleanup(func() { table.Close() })
	p, err := planner.New("node-1", table.limits)
	errtest.Must(t, err)
	n := node{table, p}
	n.adopt(t)
	fill(p)
	n.apply(t)
	return n
}

func (n node) adopt(t testing.TB) {
	t.Helper()
	s, err := n.State()
	errtest.Must(t, err)
	n.Adopt(s)
}

// apply plans and writes, and returns the number of written entries.
func (n node) apply(t testing.TB) int {
	t.Helper()
	writes := 0
	for again := true; again; {
		c := n.Plan()
		errtest.Must(t, n.Apply(c))
		again, writes = c.Again, writes+c.Writes()
	}
	return writes
}

// counted returns the count of a counter of bpf.ServiceCounts.
func (n node) counted(t testing.TB, constant string) uint64 {
	t.Helper()
	counters, err := n.Counters()
	errtest.Must(t, err)
	i := slices.IndexFunc(counters, func(c Counter) bool { return c.Constant == constant })
	if i < 0 {
		t.Fatalf("there is no counter %s", constant)
	}
	return counters[i].Count
}

func (n node) attach(t testing.TB, cgroup string) []string {
	t.Helper()
	changed, err := n.AttachSockets(cgroup)
	errtest.Must(t, err)
	return changed
}

// lab puts the services of most tests: plain and sticky have two backends of each family, empty has
// none.
func lab(p *planner.Planner) {
	p.PutService(servicetest.Named("plain", "198.18.0.1", "fd42::1"))
	p.PutSlice(servicetest.SliceOf("plain", "198.18.1.1", "198.18.1.2", "fd42:1::1", "fd42:1::2"))
	sticky := servicetest.Named("sticky", "198.18.0.2", "fd42::2")
	sticky.Affinity = time.Hour
	p.PutService(sticky)
	p.PutSlice(servicetest.SliceOf("sticky", "198.18.1.1", "198.18.1.2", "fd42:1::1", "fd42:1::2"))
	p.PutService(servicetest.Named("empty", "198.18.0.3", "fd42::3"))
}

// attachedAll is the result of AttachSockets if it did the same to all programs.
func attachedAll(did string) []string {
	var all []string
	for _, h := range socketHooks {
		all = append(all, did+" "+h.program)
	}
	return slices.Clip(all)
}
