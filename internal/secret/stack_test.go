package secret_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/secret"
)

func TestEnvironKeepsWhatIsSet(t *testing.T) {
	for before, want := range map[string]string{
		"":                                "gcshrinkstackoff=1",
		"madvdontneed=1":                  "madvdontneed=1,gcshrinkstackoff=1",
		"gcshrinkstackoff=1,gctrace=0":    "gcshrinkstackoff=1,gctrace=0",
		"gcshrinkstackoff=0":              "gcshrinkstackoff=0,gcshrinkstackoff=1",
		"gcshrinkstackoff=1,gctrace=1,a=": "gcshrinkstackoff=1,gctrace=1,a=",
	} {
		t.Setenv("GODEBUG", before)
		var got []string
		for _, v := range secret.Environ() {
			if value, is := strings.CutPrefix(v, "GODEBUG="); is {
				got = append(got, value)
			}
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("GODEBUG=%s: %q, want %q", before, got, want)
		}
	}
}

// restarted marks the process that starts itself again.
const restarted = "KUBEVEIL_TEST_RESTARTED"

// KeepStacks executes the program again exactly once, for any GODEBUG settings. The process ID,
// arguments and descriptors stay the same.
func TestProcessStartsItselfAgain(t *testing.T) {
	if os.Getenv(restarted) != "" {
		errtest.Must(t, secret.KeepStacks())
		fd, err := os.Readlink("/proc/self/fd/3")
		fmt.Println("kept", secret.StacksAreKept(), os.Getpid(), os.Args[1:], fd, err)
		return
	}

	for _, before := range []string{"", "madvdontneed=1", "gcshrinkstackoff=0"} {
		again := exec.CommandContext(t.Context(), os.Args[0],
			"-test.run=^TestProcessStartsItselfAgain$", "-test.timeout=1m")
		again.Env = append(os.Environ(), restarted+"=1", "GODEBUG="+before)
		null, err := os.Open(os.DevNull)
		errtest.Must(t, err)
		defer null.Close()
		again.ExtraFiles = []*os.File{null}

		out, err := again.CombinedOutput()
		want := fmt.Sprintf("kept true %d %v /dev/null <nil>", again.Process.Pid, again.Args[1:])
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("GODEBUG=%s: %v: %s, want %q", before, err, out, want)
		}
	}
}
