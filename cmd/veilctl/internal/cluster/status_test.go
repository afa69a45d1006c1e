package cluster

import (
	"bytes"
	"context"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/drop/dropwatch"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// A node that was taken over neither controls the terminal, nor prints a line for another node.
func TestStatusOfANodeIsSafeToPrint(t *testing.T) {
	answer := `{"node":"a","version":"v1\u001b[2J\nb  yes","problems":` +
		`["x\u009b1m\u202e\nb: all is well"],"policy":{"revision":"r\u0007\nb"}}`
	server := httptest.NewServer(&verbtest.Cluster{Sockets: map[string]string{"a": "s"},
		Veilctl: func(_ context.Context, _ []string, out, _ io.Writer) error {
			_, err := io.WriteString(out, answer)
			return err
		}})
	defer server.Close()
	k, err := remote.New(&rest.Config{Host: server.URL})
	errtest.Must(t, err)
	n := NodeSeen{Name: "a", Pod: "veild-a"}
	ask(t.Context(), k, &n)
	if n.status == nil {
		t.Fatalf("no status: %s", n.err)
	}

	var out bytes.Buffer
	errtest.Must(t, Assess([]NodeSeen{n}).Print(&out))
	if got := out.String(); got != remote.Printable(got) || strings.Contains(got, "\nb") ||
		!strings.Contains(got, "a: x\ufffd1m\ufffd; b: all is well\n") {
		t.Errorf("printed %q", got)
	}
}

// The status of the node, the status of the cluster, the metric kubeveil_problems and the exit
// status show the same problems.
func TestAllStatusesAgree(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*telemetry.Status)
		want   string
	}{
		"well": {func(*telemetry.Status) {}, ""},
		"a silent peer": {func(s *telemetry.Status) {
			s.Peers[0].State, s.Peers[0].SilentSince = telemetry.PeerSilent, time.Now()
		}, "peer node-2 has not answered"},
		"recent drops of packets of the cluster": {func(s *telemetry.Status) {
			s.Guard.Drops[0].Packets++
		}, "(dst_in_range 1)"},
	} {
		t.Run(name, func(t *testing.T) {
			n := wellNode(t, "node-1", publishedKey, "node-2")
			s, drops := *n.status, dropwatch.Watch{}
			drops.Problems(s, time.Now())
			tt.change(&s)
			s.Problems = append(s.Faults(time.Now()), drops.Problems(s, time.Now())...)
			if len(s.Problems) > 1 || !strings.Contains(strings.Join(s.Problems, ""), tt.want) {
				t.Fatalf("problems %q, want one with %q", s.Problems, tt.want)
			}

			socket := verbtest.Daemon(t, s, true, nil)
			var out bytes.Buffer
			err := verbtest.Run(t.Context(), []string{"status", "--socket", socket}, &out,
				io.Discard, Status())
			if status := verb.ExitStatus(err); (status == verb.ExitOK) != (tt.want == "") ||
				!strings.Contains(out.String(), tt.want) {
				t.Errorf("exit status %d after\n%s", status, out.String())
			}
			if got := problemsMetric(t, s); got != float64(len(s.Problems)) {
				t.Errorf("kubeveil_problems is %v", got)
			}

			server := httptest.NewServer(&verbtest.Cluster{
				Sockets: map[string]string{"node-1": socket},
				Veilctl: func(ctx context.Context, args []string, out, progress io.Writer) error {
					return verbtest.Run(ctx, args, out, progress, Status())
				}})
			defer server.Close()
			k, err := remote.New(&rest.Config{Host: server.URL})
			errtest.Must(t, err)
			n.status = nil
			ask(t.Context(), k, &n)
			r := Assess([]NodeSeen{n})
			if r.Well != (tt.want == "") || !slices.Equal(r.Nodes[0].Problems, s.Problems) {
				t.Errorf("the cluster is well: %t, problems %q", r.Well, r.Nodes[0].Problems)
			}
		})
	}
}

// problemsMetric returns the value of kubeveil_problems of a node with a status.
func problemsMetric(t *testing.T, s telemetry.Status) float64 {
	t.Helper()
	m := telemetry.NewMetrics(func() (telemetry.Status, error) { return s, nil }, false)
	families, err := m.Registry.Gather()
	errtest.Must(t, err)
	for _, f := range families {
		if f.GetName() == "kubeveil_problems" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("there is no metric kubeveil_problems")
	return 0
}
