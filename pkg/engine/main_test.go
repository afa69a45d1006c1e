package engine_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/internal/secret"
)

// TestMain runs the tests in a process whose stacks the runtime does not copy, as in a device
// process.
func TestMain(m *testing.M) {
	if err := secret.KeepStacks(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
