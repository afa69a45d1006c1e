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
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
)

// Run runs a command line of a veilctl with these verbs alone.
func Run(ctx context.Context, args []string, out, progress io.Writer,
	verbs ...*cobra.Command) error {
	root := &cobra.Command{Use: "veilctl"}
	verb.Root(root)
	root.AddCommand(verbs...)
	return verb.Run(ctx, root, args, out, progress)
}

// Completed returns what a shell gets for a command line of a veilctl with these verbs alone.
func Completed(t *testing.T, line string, verbs ...*cobra.Command) string {
	t.Helper()
	var out bytes.Buffer
	args := append([]string{"__complete"}, strings.Split(line, " ")...)
	if err := Run(t.Context(), args, &out, io.Discard, verbs...); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

// Daemon answers on a socket with s and pages, as a veild that is (not) ready. It returns the path
// of the socket.
func Daemon(t *testing.T, s telemetry.Status, ready bool,
	pages map[string]telemetry.Page) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := telemetry.ListenAdmin(socket)
	if err != nil {
		t.Fatal(err)
	}
	h := health.New(time.Hour, "first apply done")
	if ready {
		h.Done("first apply done")
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- telemetry.Serve(ctx, l, telemetry.AdminHandler(func() telemetry.Status {
			return s
		}, h, pages), slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return socket
}
