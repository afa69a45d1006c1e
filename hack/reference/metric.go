package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/pkg/site/replica"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// descPattern matches the text of a prometheus.Desc, which has no accessors. Its groups are the
// name, the help and the labels.
var descPattern = regexp.MustCompile(
	`^Desc\{fqName: "([^"]*)", help: ("(?:[^"\\]|\\.)*"),.* variableLabels: \{([^}]*)\}`)

// metrics returns the table rows for the metrics of a program.
func metrics(program string) (string, error) {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		describe(program, descs)
	}()

	var rows []string
	for d := range descs {
		f := descPattern.FindStringSubmatch(d.String())
		if f == nil {
			return "", fmt.Errorf("no name in %s", d)
		}
		if !strings.HasPrefix(f[1], "kubeveil_") {
			continue
		}
		help, err := strconv.Unquote(f[2])
		if err != nil {
			return "", err
		}
		labels := "–"
		if f[3] != "" {
			labels = "`" + strings.ReplaceAll(f[3], ",", "`, `") + "`"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", f[1], labels,
			strings.ReplaceAll(help, "|", `\|`)))
	}
	if len(rows) == 0 {
		return "", fmt.Errorf("program %q has no metrics", program)
	}
	slices.Sort(rows)
	return strings.Join(rows, "\n"), nil
}

// describe sends the descriptions of all metrics of a program to descs, including metrics that only
// some nodes have.
func describe(program string, descs chan<- *prometheus.Desc) {
	switch program {
	case "veild":
		m := telemetry.NewMetrics(func() (telemetry.Status, error) {
			return telemetry.Status{}, nil
		}, true)
		m.ObserveProgramming(time.Second) // the first call registers the metric
		m.ObservePolicy(time.Second)      // as above
		m.Registry.Describe(descs)
	case "veil-csi":
		r := prometheus.NewRegistry()
		driver.NewMetrics(new(driver.Driver), func() bool { return true }, r)
		r.Describe(descs)
	case "veil-site":
		replica.NewMetrics().Registry.Describe(descs)
	}
}
