package policy

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// The CPU time of a process is all that its threads took. A process that is not there has none.
func TestCPUTimeOfAProcess(t *testing.T) {
	own := func() int64 {
		t.Helper()
		spent, err := cpuOf(int32(os.Getpid()))
		errtest.Must(t, err)
		return spent.Nanoseconds()
	}
	before, usage := own(), cpu()
	for cpu() == usage {
	}
	if after := own(); after <= before {
		t.Errorf("a process that works took %d ns, then %d ns", before, after)
	}

	var out bytes.Buffer
	errtest.Must(t, watch(t.Context(), []string{fmt.Sprint(os.Getpid()), "0s", "1ms"}, &out))
	if text := out.String(); strings.HasPrefix(text, "-") || !strings.HasSuffix(text, "\n") {
		t.Errorf("printed %q, want a number", text)
	}
	for _, args := range []string{"", "x 1s 1s", "1 1 1s", "1 1s 1", "999999999 0s 0s"} {
		if err := watch(t.Context(), strings.Fields(args), &out); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
