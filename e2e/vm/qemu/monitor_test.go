package qemu_test

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/vm/qemu"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// The monitor greets, and reports events between a command and its answer. Command waits for the
// answer, and returns the error of the monitor.
func TestCommandWaitsForItsAnswer(t *testing.T) {
	for name, want := range map[string]string{"stop": "", "stpo": "stpo has not been found"} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "qmp")
			l, err := net.Listen("unix", socket)
			errtest.Must(t, err)
			defer l.Close()
			got := make(chan string, 1)
			go func() { got <- serve(l) }()

			err = qemu.Command(t.Context(), socket, name)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
			if commands := <-got; !strings.HasSuffix(commands, "qmp_capabilities "+name) {
				t.Errorf("the monitor got %s", commands)
			}
		})
	}
}

// serve serves one connection as the monitor does, and returns the commands.
func serve(l net.Listener) string {
	conn, err := l.Accept()
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	fmt.Fprintln(conn, `{"QMP": {"version": {"qemu": {"major": 7}}, "capabilities": []}}`)
	var commands []string
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		name := strings.Split(lines.Text(), `"`)[3]
		commands = append(commands, name)
		fmt.Fprintln(conn, `{"timestamp": {"seconds": 1}, "event": "STOP"}`)
		if name == "stpo" {
			fmt.Fprintln(conn, `{"error": {"class": "CommandNotFound", "desc": "The command stpo has `+
				`not been found"}}`)
		} else {
			fmt.Fprintln(conn, `{"return": {}}`)
		}
	}
	return strings.Join(commands, " ")
}
