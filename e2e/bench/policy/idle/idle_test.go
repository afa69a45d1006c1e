package idle

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// The CPU time of a process is all that its threads took. A process that is not there has none.
func TestCPUTimeOfAProcess(t *testing.T) {
	for before := load.OwnCPU(); load.OwnCPU() <= before; {
	}
	var out bytes.Buffer
	errtest.Must(t, Watch(t.Context(), []string{fmt.Sprint(os.Getpid()), "0s", "1ms"}, &out))
	if text := out.String(); strings.HasPrefix(text, "-") || !strings.HasSuffix(text, "\n") {
		t.Errorf("printed %q, want a number", text)
	}
	for _, args := range []string{"", "x 1s 1s", "1 1 1s", "1 1s 1", "999999999 0s 0s"} {
		if err := Watch(t.Context(), strings.Fields(args), &out); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
