package engine_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/engine/secret"
)

// TestMain runs the tests in a process of which the runtime copies no stack, as that of a device is.
func TestMain(m *testing.M) {
	if secret.StacksAreKept() {
		os.Exit(m.Run())
	}
	err := syscall.Exec("/proc/self/exe", os.Args, secret.Environ())
	fmt.Fprintln(os.Stderr, "start the tests again:", err)
	os.Exit(1)
}
