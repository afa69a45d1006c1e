package volumes

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/disk"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestSample(t *testing.T) {
	r := disk.Result{Ops: 2000, Took: 2 * time.Second, P50: 3 * time.Millisecond,
		P99: 9 * time.Millisecond}
	for _, q := range quantities {
		want := map[bench.Unit]bench.Sample{
			bench.IOPS: {Value: 1000}, bench.Mbps: {Value: 1000 * mib * 8 / 1e6},
			bench.Millisecond: {Value: 3, P99: 9},
		}[q.unit]
		if got := q.sample(r); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", q.name, got, want)
		}
	}
}

// Each quantity runs the job in its name, and its result is valid.
func TestQuantities(t *testing.T) {
	result, err := bench.New(bench.VM, t.TempDir())
	errtest.Must(t, err)
	r := &run{RunConfig: RunConfig{Class: "a", Baseline: "b", Node: "n", Size: 64 * mib,
		Choice: suite.Choice{Rounds: 1}, Sample: time.Second, Platform: bench.VM},
		Run: &suite.Run{Result: result}}

	seen := map[string]bool{}
	for _, q := range quantities {
		line := strings.Join(command(q.job, r.Size, r.Sample), " ")
		if write := strings.Contains(q.title, "write"); !strings.Contains(line,
			"--file /data/load --size 67108864") ||
			strings.Contains(line, "--rw randwrite") != write || seen[q.name] {
			t.Errorf("%s: %s", q.title, line)
		}
		seen[q.name] = true
		base := bench.Summarize([]float64{2})
		result.Cases = append(result.Cases,
			bench.Case{Name: q.name, Unit: q.unit, Ours: bench.Summarize([]float64{1}), Base: &base,
				BaseName: "b", Ratio: &bench.Ratio{Median: 0.5, Min: 0.5, Max: 0.5}})
	}

	errtest.Check(t, result.Validate())

	var md strings.Builder
	rep := r.Report()
	rep.Result = result
	rep.Labels = map[string]string{quantities[0].name: quantities[0].title}
	if err := rep.Markdown(&md); err != nil || !strings.Contains(md.String(), "64 at once") {
		t.Errorf("%v: %s", err, &md)
	}
}

// A missing class is reported before anything is made.
func TestNoSuchClass(t *testing.T) {
	made := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		made = made || r.Method != http.MethodGet
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/version" {
			_ = json.NewEncoder(w).Encode(map[string]string{"gitVersion": "v1.36.3"})
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1",
			"status": "Failure", "reason": "NotFound", "code": http.StatusNotFound,
			"message": "no such class"})
	}))
	t.Cleanup(server.Close)
	k, err := remote.New(&rest.Config{Host: server.URL})
	errtest.Must(t, err)
	if _, err := Run(t.Context(), k, RunConfig{Class: "mine", Baseline: "other",
		Choice: suite.Choice{Rounds: 1}}); err == nil ||
		!strings.Contains(err.Error(), "class mine") || made {
		t.Errorf("%v, made %v", err, made)
	}
}
