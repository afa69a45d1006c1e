package suite

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// childSuite is the suite of the child processes of this test program.
const childSuite = "bench-of-children"

func TestMain(m *testing.M) {
	if status, is := Child(childSuite, child); is {
		os.Exit(status)
	}
	os.Exit(nettest.Run(m))
}

// child prints its arguments, or listens at a port, or fails.
func child(ctx context.Context, args []string, out io.Writer) error {
	switch args[0] {
	case "print":
		_, err := fmt.Fprintln(out, strings.Join(args[1:], ","))
		return err
	case "listen":
		l, err := net.Listen("tcp4", ":"+args[1])
		if err != nil {
			return err
		}
		<-ctx.Done()
		return l.Close()
	}
	return fmt.Errorf("%q: want print or listen", args)
}

func self(t *testing.T, args ...string) []string {
	t.Helper()
	s, err := NewSelf(childSuite)
	errtest.Must(t, err)
	return s.Argv(args...)
}

func TestChildGetsItsArguments(t *testing.T) {
	argv := self(t, "print", "a", "b c")
	out, err := Output(exec.CommandContext(t.Context(), argv[0], argv[1:]...))
	if err != nil || string(out) != "a,b c\n" {
		t.Errorf("%q, %v", out, err)
	}

	argv = self(t, "other")
	_, err = Output(exec.CommandContext(t.Context(), argv[0], argv[1:]...))
	if err == nil || !strings.Contains(err.Error(), "want print or listen") {
		t.Errorf("error %v, want the error of the child", err)
	}
}

func TestProcessOfAnotherSuiteIsNotAChild(t *testing.T) {
	t.Setenv(childEnv, "bench-other")
	if status, is := Child(childSuite, nil); is || status != 0 {
		t.Errorf("status %d, %v", status, is)
	}
}

// Start returns when the program listens in the namespace, or with an error when it has ended. The
// port is not open outside of the namespace.
func TestStartWaitsForListener(t *testing.T) {
	nettest.NeedRoot(t)
	nettest.NeedProgram(t, "ip")
	nettest.NeedProgram(t, "nsenter")
	space, err := NewSpace("test")
	if space != nil {
		defer space.Close()
	}
	errtest.Must(t, err)

	d, err := space.Start(t.Context(), Program{Argv: self(t, "listen", "9"), Ports: []uint16{9}})
	errtest.Must(t, err)
	defer d.Close()
	if err := space.Do(func() error {
		c, err := net.Dial("tcp4", "127.0.0.1:9")
		if err != nil {
			return err
		}
		return c.Close()
	}); err != nil {
		t.Errorf("connect to the program: %v", err)
	}

	_, err = space.Start(t.Context(), Program{Argv: self(t, "other"), Ports: []uint16{10}})
	if err == nil || !strings.Contains(err.Error(), "it has ended") ||
		!strings.Contains(err.Error(), "want print or listen") {
		t.Errorf("error %v, want that the program ended, with its output", err)
	}
}

// Waiting for a listener does not bind the port, so the program can bind it.
func TestListenersAreFoundWithoutBinding(t *testing.T) {
	nettest.NeedRoot(t)
	space, err := NewSpace("test")
	errtest.Must(t, err)
	defer space.Close()

	for network, address := range map[string]string{"tcp4": "127.0.0.1:9", "tcp6": "[::1]:9"} {
		t.Run(network, func(t *testing.T) {
			errtest.Must(t, space.Do(func() error {
				l, err := net.Listen(network, address)
				if err != nil {
					return err
				}
				if is, err := isListening(9); !is || err != nil {
					t.Errorf("with a listener: %t, %v", is, err)
				}
				if err := l.Close(); err != nil {
					return err
				}
				if is, err := isListening(9); is || err != nil {
					t.Errorf("without: %t, %v", is, err)
				}
				return nil
			}))
		})
	}
}
