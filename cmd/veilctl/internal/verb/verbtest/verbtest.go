package verbtest

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
)

// Run runs a command line of a veilctl that has only these verbs.
func Run(ctx context.Context, args []string, out, progress io.Writer,
	verbs ...*cobra.Command) error {
	root := &cobra.Command{Use: "veilctl"}
	verb.Root(root)
	root.AddCommand(verbs...)
	return verb.Run(ctx, root, args, out, progress)
}

// Completed returns the completions of the last word of line, for a veilctl that has only these
// verbs.
func Completed(t *testing.T, line string, verbs ...*cobra.Command) string {
	t.Helper()
	var out bytes.Buffer
	args := append([]string{"__complete"}, strings.Split(line, " ")...)
	errtest.Must(t, Run(t.Context(), args, &out, io.Discard, verbs...))
	return strings.TrimSpace(out.String())
}

// Daemon serves s and pages on a socket until the test ends, like veild, and returns the path of
// the socket. ready reports whether this veild is ready.
func Daemon(t *testing.T, s telemetry.Status, ready bool,
	pages map[string]admin.Page) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := admin.Listen(socket)
	errtest.Must(t, err)
	h := health.New(time.Hour, "first apply done")
	if ready {
		h.Done("first apply done")
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- telemetry.Serve(ctx, l, admin.Handler(func() (telemetry.Status, error) {
			return s, nil
		}, h, pages), slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		errtest.Check(t, <-ended)
	})
	return socket
}
