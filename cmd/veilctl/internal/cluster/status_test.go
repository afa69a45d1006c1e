package cluster

import (
	"bytes"
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/remote"
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
