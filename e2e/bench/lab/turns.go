package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// configuration is a change of the tunnels that veild logged.
type configuration struct {
	// peers is the number of changed peers.
	peers int
	// took is the time from the planned table until the change was on the device.
	took time.Duration
	// waited is the time from the event of the source until the change was on the device.
	waited time.Duration
}

// waitConfigured waits until veild has logged more changes of the tunnels than before, and returns
// the additional changes. It reads the log, which costs veild no CPU.
func (s *scaled) waitConfigured(ctx context.Context,
	before int) (since []configuration, err error) {
	err = lab.Until(ctx, 30*time.Second, func() error {
		all, err := s.configured()
		if err != nil {
			return lab.Stop(err)
		}
		if since = all[before:]; len(since) == 0 {
			return errors.New("veild has not changed the tunnels")
		}
		return nil
	})
	return since, err
}

// configured returns all changes of the tunnels that veild has logged, in order.
func (s *scaled) configured() ([]configuration, error) {
	files, err := filepath.Glob(filepath.Join(s.node.Dir, "log", "veild*.log"))
	if err != nil {
		return nil, err
	}

	// veild.log, veild-2.log and so on.
	slices.SortFunc(files, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	var out []configuration
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			if !strings.Contains(line, "tunnels changed") {
				continue
			}
			n, errPeers := strconv.Atoi(field(line, "configured"))
			took, errTook := time.ParseDuration(field(line, "took"))
			waited, errWaited := time.ParseDuration(field(line, "waited"))
			if err := errors.Join(errPeers, errTook, errWaited); err != nil {
				return nil, fmt.Errorf("log line %q: %w", line, err)
			}
			out = append(out, configuration{n, took, waited})
		}
	}

	return out, nil
}

// field returns the value of a field of a log line, or "" if the line does not have the field.
func field(line, name string) string {
	_, rest, _ := strings.Cut(line, " "+name+"=")
	value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	return value
}
