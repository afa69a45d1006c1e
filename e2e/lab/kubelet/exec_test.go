package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// A client of Kubernetes gets the output of a program and its exit status, with and without a
// terminal.
func TestExecReturnsOutputAndStatus(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serveExec(w, r, func(ctx context.Context, command []string, out, errOut io.Writer) error {
			cmd := exec.CommandContext(ctx, command[0], command[1:]...)
			cmd.Stdout, cmd.Stderr = out, errOut
			return cmd.Run()
		})
	}))
	defer server.Close()

	for _, c := range []struct {
		script      string
		tty         bool
		out, errOut string
		status      int
	}{
		{"echo a; echo b >&2", false, "a\n", "b\n", 0},
		{"echo a; echo b >&2", true, "a\nb\n", "", 0},
		{"echo a; exit 3", false, "a\n", "", 3},
	} {
		u, err := url.Parse(server.URL)
		errtest.Must(t, err)
		q := url.Values{"command": {"sh", "-c", c.script}, "output": {"1"}, "error": {"1"}}
		if c.tty {
			q.Set("tty", "1")
		}
		u.RawQuery = q.Encode()
		e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
		errtest.Must(t, err)
		var out, errOut bytes.Buffer
		err = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out,
			Stderr: &errOut, Tty: c.tty})
		var exit utilexec.CodeExitError
		if out.String() != c.out || errOut.String() != c.errOut || (err != nil) != (c.status != 0) ||
			err != nil && (!errors.As(err, &exit) || exit.Code != c.status) {
			t.Errorf("%s: %q, %q, %v", fmt.Sprint(c), out.String(), errOut.String(), err)
		}
	}
}
