package mount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// fakePrograms returns a device and a function that replaces a program with a script.
func fakePrograms(t *testing.T) (device string, become func(program, script string)) {
	t.Helper()
	loop, _ := disk(t, 1<<20)
	dir := t.TempDir()
	// The unprivileged users as which the programs run must be able to enter the folder.
	errtest.Must(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o711), os.Chmod(dir, 0o711)))
	before := folders
	t.Cleanup(func() { folders = before })
	folders = append([]string{dir}, before...)
	return loop.Path, func(program, script string) {
		t.Helper()
		filetest.Write(t, filepath.Join(dir, program), []byte(script), 0o755)
	}
}

// fakeE2fsck returns a device and a function that replaces e2fsck with a script.
func fakeE2fsck(t *testing.T) (device string, become func(script string)) {
	t.Helper()
	device, program := fakePrograms(t)
	return device, func(script string) { program("e2fsck", script) }
}

func TestPrograms(t *testing.T) {
	var h Host
	if _, err := h.run(t.Context(), program{name: "no-such-program-anywhere"}); !errors.Is(err,
		ErrNoProgram) {
		t.Errorf("%v, want %v", err, ErrNoProgram)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.run(ctx, program{name: "true"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
	code, err := h.run(t.Context(), program{name: "sh",
		args: []string{"-c", "echo said; echo why; yes | head -c 1000000; exit 7"}})
	if code != 7 || err == nil || !strings.Contains(err.Error(), "said why y y") ||
		len(err.Error()) > 2*maxOutput {
		t.Errorf("code %d, %v", code, err)
	}
}

// Only e2fsck itself can report damage. If e2fsck is killed or cannot be started, the file system
// does not count as damaged.
func TestOnlyE2fsckReportsDamage(t *testing.T) {
	device, become := fakeE2fsck(t)

	for end, c := range map[string]struct{ fails, damaged bool }{
		"exit 0":     {false, false},
		"exit 1":     {false, false},
		"exit 4":     {true, true},
		"exit 5":     {true, true},
		"exit 8":     {true, false},
		"kill -9 $$": {true, false},
		"kill $$":    {true, false},
	} {
		const said = `echo "Entry 'patient-7.txt' in /records (12) is a link to directory /x (13)."` + "\n"
		become("#!/bin/sh\n" + said + end + "\n")
		err := (Host{}).Check(t.Context(), device, Ext4)
		if (err != nil) != c.fails || errors.Is(err, ErrDamaged) != c.damaged {
			t.Errorf("%s: %v", end, err)
		}
		// e2fsck's output about a volume's files must not reach logs and events.
		if err != nil && (strings.Contains(err.Error(), "patient") ||
			!strings.Contains(err.Error(), "e2fsck -fn "+device)) {
			t.Errorf("%s: %v", end, err)
		}
		if err != nil && strings.Contains(err.Error(), "memory") == c.damaged {
			t.Errorf("%s: %v", end, err)
		}
	}
}

// The memory of a check is limited. Otherwise a large check could make the kernel kill the driver,
// which serves all volumes.
func TestCheckHasALimitOfMemory(t *testing.T) {
	device, become := fakeE2fsck(t)
	// The script waits for the limit, which is set once the program runs. It gives up if the limit
	// is not set.
	const script = `#!/bin/sh
for _ in 1 2 3 4 5 6 7 8 9 10; do [ "$(ulimit -v)" = 65536 ] && exit 0; sleep 0.1; done
exit 8
`
	become(script)
	if err := (Host{CheckMemory: 64 << 20}).Check(t.Context(), device, Ext4); err != nil {
		t.Error(err)
	}
	if err := (Host{}).Check(t.Context(), device, Ext4); err == nil ||
		!strings.Contains(err.Error(), "memory") {
		t.Errorf("without a limit: %v", err)
	}
}

// A program that parses a file system only has rights to its device.
func TestProgramsAreConfined(t *testing.T) {
	device, become := fakePrograms(t)
	// An error of Make quotes the output of the program.
	const script = `#!/bin/sh
grep -E '^(Uid|Gid|Groups|Cap[A-Z][a-z]*|NoNewPrivs):' /proc/self/status | tr -d '\t'
for last; do :; done
echo "device=$last"
head -c 4 "$last" | tr '\0' 'z'; echo
echo written | dd of="$last" bs=512 conv=notrunc 2>/dev/null && echo wrote
( : <"$(cat "${0%/*}/name")" ) 2>/dev/null && echo "opened the node of /dev"
( : >"${0%/*}/file" ) 2>/dev/null && echo "wrote a file"
[ "$(wc -l </proc/net/dev)" = 3 ] || echo "has a network"
exit 7
`
	become("mkfs.ext4", script)
	become("name", device)
	err := (Host{}).Make(t.Context(), device, Ext4)
	if err == nil {
		t.Fatal("it does not fail")
	}
	said := err.Error()

	for _, want := range []string{"CapInh:0000000000000000 ", "CapPrm:0000000000000000 ",
		"CapEff:0000000000000000 ", "CapBnd:0000000000000000 ", "CapAmb:0000000000000000 ",
		"NoNewPrivs:1 ", "device=" + inheritedDevice + " ", " zzzz wrote", device + ": exit"} {
		if !strings.Contains(said, want) {
			t.Errorf("want %q", want)
		}
	}
	for _, no := range []string{"Uid:0", "Gid:0", "Groups:0", "opened", "a file", "network"} {
		if strings.Contains(said, no) {
			t.Errorf("do not want %q", no)
		}
	}
	if t.Failed() {
		t.Log(said)
	}

	if again := (Host{}).Make(t.Context(), device, Ext4).Error(); strings.Contains(again,
		user(t, said)) {
		t.Errorf("two programs have the same user: %s", again)
	}
	if err := (Host{}).Make(t.Context(), "/dev/null", Ext4); err == nil ||
		!strings.Contains(err.Error(), "not a block device") {
		t.Errorf("made on no block device: %v", err)
	}
}

// user returns the line of /proc/self/status about the user in the output of a program.
func user(t *testing.T, said string) string {
	t.Helper()
	_, after, ok := strings.Cut(said, "Uid:")
	uid, _, _ := strings.Cut(after, " ")
	if !ok || uid == "" {
		t.Fatalf("no user in %q", said)
	}
	return "Uid:" + uid
}

// The programs that grow file systems keep one capability, because the kernel requires it.
func TestProgramsThatGrowKeepOneCapability(t *testing.T) {
	device, become := fakePrograms(t)
	const script = "#!/bin/sh\ngrep -E '^(Cap|NoNew)' /proc/self/status | tr -d '\\t'; exit 7\n"
	become("resize2fs", script)
	become("xfs_growfs", script)

	for kind, capability := range map[FS]int{Ext4: unix.CAP_SYS_RESOURCE, XFS: unix.CAP_SYS_ADMIN} {
		err := (Host{}).Grow(t.Context(), device, t.TempDir(), kind)
		if err == nil {
			t.Fatal("it does not fail")
		}
		_, bound, _ := strings.Cut(err.Error(), "CapBnd:")
		bound, _, _ = strings.Cut(bound, " ")
		got, _ := strconv.ParseUint(bound, 16, 64)
		// The machine itself may lack the capability.
		if got&^(1<<capability) != 0 || !strings.Contains(err.Error(), "NoNewPrivs:1") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// The number of concurrent checks is limited by their memory. Each takes its share of the Budget.
func TestChecksAreBoundedByMemory(t *testing.T) {
	for name, c := range map[string]struct {
		check, programs, share uint64
		want                   int
	}{
		"three fit":              {64 << 20, 200 << 20, 64 << 20, 3},
		"one fits":               {96 << 20, 128 << 20, 96 << 20, 1},
		"more than there is":     {256 << 20, 128 << 20, 128 << 20, 1},
		"without a limit, alone": {0, 1 << 30, 1 << 30, 1},
	} {
		t.Run(name, func(t *testing.T) {
			device, become := fakeE2fsck(t)
			// The script runs until the test makes a file.
			dir := filepath.Dir(folders[0])
			gate := filepath.Join(folders[0], "end")
			running := filepath.Join(dir, "running")
			errtest.Must(t, errors.Join(os.Mkdir(running, 0o777), os.Chmod(running, 0o777)))
			become("#!/bin/sh\n: >" + running + "/$$\nwhile ! [ -e " + gate + " ]; do sleep 0.02; done\n")

			h := Host{CheckMemory: c.check, Programs: NewBudget(c.programs)}
			var checks sync.WaitGroup
			for range c.want {
				checks.Go(func() {
					errtest.Check(t, h.Check(t.Context(), device, Ext4))
				})
			}

			nettest.Until(t, time.Minute, "all run", func() bool {
				return t.Failed() || count(t, running) == c.want
			})
			left := int64(c.programs) - int64(c.want)*int64(c.share)
			if h.Programs.free.TryAcquire(left+1) || !h.Programs.free.TryAcquire(left) {
				t.Errorf("%d bytes are not what is left", left)
			}
			h.Programs.free.Release(left)

			filetest.Write(t, gate, nil, 0o644)
			checks.Wait()
			if !h.Programs.free.TryAcquire(h.Programs.total) {
				t.Error("the memory was not released")
			}
		})
	}
}

func count(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	errtest.Must(t, err)
	return len(entries)
}

// Programs that hang delay others only for a while. Their memory is released once only. A slow
// program keeps its memory.
func TestProgramsThatHangAreOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(100)
		ticks := 0
		hung := map[string]func() string{
			"hangs": func() string { return "0 1" },
			"slow":  func() string { ticks++; return strconv.Itoa(ticks) },
		}
		var shares []*share
		for _, spent := range hung {
			s, err := b.take(t.Context(), 50)
			errtest.Must(t, err)
			go s.watch(spent)
			shares = append(shares, s)
		}

		over, cancel := context.WithTimeout(t.Context(), sharePatience/2)
		defer cancel()
		if _, err := b.take(over, 50); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request that is over: %v", err)
		}

		began := time.Now()
		next, err := b.take(t.Context(), 50)
		if err != nil || time.Since(began) != sharePatience/2 {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		long, cancel := context.WithTimeout(t.Context(), 10*sharePatience)
		defer cancel()
		if _, err := b.take(long, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("beside a slow program: %v", err)
		}

		for _, s := range append(shares, next) {
			s.end()
		}
		if !b.free.TryAcquire(100) || b.free.TryAcquire(1) {
			t.Error("less or more memory was released than taken")
		}
	})
}
