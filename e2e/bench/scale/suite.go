package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Suite is the name of this suite in gates.json.
const Suite = "bench-scale"

// benchmark has the parts in the order in which they run.
var benchmark = suite.Suite[*run]{Name: Suite, Look: 2 * time.Second, Parts: []suite.Part[*run]{
	{Name: partList, Run: (*run).list},
	{Name: partUDP, Run: (*run).udp},
	{Name: partIPv6, Run: (*run).ipv6},
	{Name: partWhole, Run: (*run).whole},
	{Name: partServer, Run: (*run).server},
	{Name: partWrite, Run: (*run).write},
}}

// Parts returns the names of the parts in the order in which they run.
func Parts() []string { return benchmark.Names() }

// Sizes are the numbers of endpoints of the curves.
var Sizes = []int{1, 5, 10, 1000, 10_000, 100_000, 1_000_000}

// maxSize is the largest number of endpoints for which the default table has room.
const maxSize = 1 << 20

// RunConfig chooses the measurements of a run. The zero value is not valid.
type RunConfig struct {
	suite.Choice
	// Sizes are numbers of endpoints.
	Sizes []int
	// Profile is the folder for a CPU profile of each measurement of our side. Empty means none.
	Profile string
}

// Check returns an error if an option is out of range.
func (o RunConfig) Check() error {
	if len(o.Sizes) == 0 || slices.Min(o.Sizes) < 1 || slices.Max(o.Sizes) > maxSize {
		return fmt.Errorf("sizes %v: want numbers from 1 to %d", o.Sizes, maxSize)
	}
	return benchmark.Check(o.Choice)
}

// Estimate returns the approximate duration of a run.
func (o RunConfig) Estimate() time.Duration {
	each := time.Duration(0)
	for _, n := range o.Sizes {
		each += 3*time.Second + time.Duration(n)*15*time.Microsecond
	}
	each += time.Duration(slices.Max(o.Sizes)) * 20 * time.Microsecond // of other kinds
	if slices.Contains(o.Parts, partServer) || slices.Contains(o.Parts, partWrite) {
		each += time.Duration(slices.Max(o.Sizes)) * 150 * time.Microsecond
	}
	return time.Duration(1+o.Rounds) * each
}

// own is the prefix of the names of the suite's folders.
const own = suite.Prefix("kubeveil-bench-scale-")

// run is one run of the suite.
type run struct {
	RunConfig
	*suite.Run
	self suite.Self
	// space is the network namespace of all processes.
	space *suite.Space
	// dir is the folder for credentials.
	dir string
	// profiles is the number of profiles.
	profiles int
	// real is the real API server, or nil.
	real *plane
}

// Run measures the chosen parts and returns the report. If an error ends the run after measuring
// began, Run returns it beside a report of the results so far. A missed gate is not an error. Run
// needs root, and its program must call Child first.
func Run(ctx context.Context, o RunConfig) (*report.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	return benchmark.Run(ctx, o.Choice, func(_ context.Context, r *suite.Run) (*run, error) {
		s := &run{RunConfig: o, Run: r}
		var err error
		if o.Profile != "" {
			if err := os.MkdirAll(o.Profile, 0o755); err != nil {
				return s, err
			}
		}
		if s.self, err = suite.NewSelf(Suite); err != nil {
			return s, err
		}
		if s.dir, err = own.Folder(); err != nil {
			return s, err
		}
		s.space, err = suite.NewSpace("node")
		return s, err
	})
}

// Close removes the namespace, the API server and the folder.
func (s *run) Close() error {
	if s.space != nil {
		s.space.Close()
	}
	var err error
	if s.real != nil {
		err = s.real.lab.Close()
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return errors.Join(err, s.Run.Close())
}

// Skips reports whether a gate is about a number of endpoints that was not measured.
func (s *run) Skips(gate string) bool {
	part, rest, _ := strings.Cut(gate, "_")
	n := 0
	if _, err := fmt.Sscanf(rest, "%d", &n); err != nil {
		return false
	}
	switch part {
	case partList, partWrite:
		return !slices.Contains(s.Sizes, n)
	case partWhole:
		return s.largest() < n
	}
	return s.largest() != n
}
