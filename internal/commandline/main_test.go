package commandline_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/commandline"
)

// mainEnv makes the test's program a program whose arguments are the value.
const mainEnv = "KUBEVEIL_COMMANDLINE_MAIN"

func TestMainEndsWithAStatus(t *testing.T) {
	if args, set := os.LookupEnv(mainEnv); set {
		os.Args = append(os.Args[:1], strings.Fields(args)...)
		commandline.Main("veil-x", readHost, func(_ context.Context, host string) error {
			if host == "bad" {
				return errors.New("no such host")
			}
			return nil
		})
		return
	}

	for args, want := range map[string]struct {
		status int
		text   string
	}{
		"--host a":   {0, ""},
		"-h":         {0, "--host name"},
		"--hots a":   {2, "veil-x: unknown flag: --hots: see veil-x -h\n"},
		"--host bad": {1, "veil-x: no such host\n"},
	} {
		c := exec.Command(os.Args[0], "-test.run=^TestMainEndsWithAStatus$")
		c.Env = append(os.Environ(), mainEnv+"="+args)
		out, err := c.CombinedOutput()
		if c.ProcessState == nil {
			t.Fatal(err)
		}
		if got := c.ProcessState.ExitCode(); got != want.status ||
			!strings.Contains(string(out), want.text) {
			t.Errorf("%s: status %d, want %d and %q:\n%s", args, got, want.status, want.text, out)
		}
	}
}

// readHost parses a command line with one flag.
func readHost(args []string, help io.Writer) (host string, err error) {
	flags := commandline.New("veil-x")
	flags.StringVar(&host, "host", "", "`name` of a host")
	err = commandline.ParseAll(flags, "Usage: veil-x\n\n", args, help)
	return host, err
}
