// Package tunnellog reads from the logs of veild on a node of a lab when the tunnels changed, and
// how long that took. Reading a log costs veild no CPU.
package tunnellog

import (
	"cmp"
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

// Change is a change of the tunnels.
type Change struct {
	// Peers is the number of changed peers.
	Peers int
	// Took is the time from the planned table until the change was on the device.
	Took time.Duration
	// Waited is the time from the event of the source until the change was on the device.
	Waited time.Duration
}

// Read returns all changes that veild has logged on a node, in order. veild must log them, as with
// logLevel info.
func Read(node *lab.Node) ([]Change, error) {
	files, err := filepath.Glob(filepath.Join(node.Dir, "log", "veild*.log"))
	if err != nil {
		return nil, err
	}

	// veild.log, veild-2.log and so on.
	slices.SortFunc(files, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	var out []Change
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
			out = append(out, Change{n, took, waited})
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
