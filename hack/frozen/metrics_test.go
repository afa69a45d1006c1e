package frozen

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/internal/golden"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// TestMetrics holds the names and labels of all metrics of veild and veil-csi.
func TestMetrics(t *testing.T) {
	m := telemetry.NewMetrics(func() telemetry.Status { return telemetry.Status{} }, true)
	m.ObserveProgramming(time.Second) // the first call registers the metric
	m.ObservePolicy(time.Second)      // as above
	golden.Check(t, "metrics/veild.txt", described(t, m.Registry))

	r := prometheus.NewRegistry()
	driver.NewMetrics(new(driver.Driver), func() bool { return true }, r)
	golden.Check(t, "metrics/veil-csi.txt", described(t, r))
}

var descPattern = regexp.MustCompile(`fqName: "([^"]*)".* variableLabels: \{([^}]*)\}`)

// described lists the metrics of c that are ours, one a line.
func described(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()

	var lines []string
	for d := range descs {
		f := descPattern.FindStringSubmatch(d.String())
		if f == nil {
			t.Fatalf("no name in %s", d)
		}
		if strings.HasPrefix(f[1], "kubeveil_") {
			lines = append(lines, f[1]+"{"+f[2]+"}")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}
