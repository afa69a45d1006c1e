package dmcrypt

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// cryptTarget is device-mapper with the crypt target of a kernel that supports these optional
// arguments. Like most kernels (crypt_ctr_optional in drivers/md/dm-crypt.c) it returns EINVAL for
// any other argument, and for a wrong count.
type cryptTarget struct {
	known []string
	most  int
	// fails is the error for every table, or 0.
	fails unix.Errno
	// asked lists the argument lines that the target received. taken is the line that it accepted.
	asked []string
	taken string
}

func (c *cryptTarget) call(q dmRequest) (*dmReply, error) {
	if q.command != dmTableLoad || q.name == "" || len(q.targets) != 1 ||
		q.targets[0].kind != "crypt" {
		return nil, errors.New("it loads no table of one crypt target")
	}
	params := q.targets[0].params
	c.asked = append(c.asked, params)
	if c.fails != 0 {
		return nil, q.explain(c.fails)
	}
	const fixed = 5
	f := strings.Fields(params)
	n, err := strconv.Atoi(f[fixed])
	if err != nil || n > c.most || n != len(f)-fixed-1 {
		return nil, q.explain(unix.EINVAL)
	}
	for _, arg := range f[fixed+1:] {
		if !slices.Contains(c.known, arg) {
			return nil, q.explain(unix.EINVAL)
		}
	}
	c.taken = params
	return &dmReply{}, nil
}

// If the kernel lacks a flag of a tuning, all flags are left out and the rest of the table is
// unchanged.
func TestFlagsThatTheKernelLacks(t *testing.T) {
	const sectors, discards, submit, read, write = "sector_size:4096", "allow_discards",
		"submit_from_crypt_cpus", "no_read_workqueue", "no_write_workqueue"
	all := []string{sectors, discards, "same_cpu_crypt", submit, read, write}
	before59 := cryptTarget{known: all[:4], most: 6} // Linux 5.9 added the last two.
	for name, c := range map[string]struct {
		kernel  cryptTarget
		tuning  Tuning
		discard bool
		// want is the suffix of the accepted line. Empty means an error.
		want  string
		err   error
		asked int
	}{
		"latency": {cryptTarget{known: all, most: 8}, Latency, false,
			" 3 " + sectors + " " + read + " " + write, nil, 1},
		"throughput": {cryptTarget{known: all, most: 8}, Throughput, true,
			" 3 " + sectors + " " + submit + " " + discards, nil, 1},
		"no tuning": {cryptTarget{known: all, most: 8}, "", true,
			" 2 " + sectors + " " + discards, nil, 1},
		"latency before 5.9": {before59, Latency, false, " 1 " + sectors, nil, 2},
		"latency before 5.9, with discards": {before59, Latency, true,
			" 2 " + sectors + " " + discards, nil, 2},
		"throughput before 5.9": {before59, Throughput, false,
			" 2 " + sectors + " " + submit, nil, 1},
		"one flag of two": {cryptTarget{known: all[:5], most: 8}, Latency,
			true, " 2 " + sectors + " " + discards, nil, 2},
		"fewer arguments than the tuning wants": {cryptTarget{known: all, most: 2}, Latency, true,
			" 2 " + sectors + " " + discards, nil, 2},
		"no sectors of 4096": {cryptTarget{known: all[1:], most: 8}, Latency,
			false, "", unix.EINVAL, 2},
		"no discards": {cryptTarget{known: []string{sectors}, most: 8},
			Throughput, true, "", unix.EINVAL, 2},
		"no sectors, no tuning": {cryptTarget{known: all[1:], most: 8}, "", false,
			"", unix.EINVAL, 1},
		"no memory": {cryptTarget{fails: unix.ENOMEM}, Latency, false,
			"", unix.ENOMEM, 1},
		"no such cipher": {cryptTarget{fails: unix.ENOENT}, Latency, false,
			"", unix.ENOENT, 1},
		"no such key": {cryptTarget{fails: unix.ENOKEY}, Latency, false,
			"", unix.ENOKEY, 1},
		"device in use": {cryptTarget{fails: unix.EBUSY}, Throughput, false,
			"", unix.EBUSY, 1},
		"mapping is gone": {cryptTarget{fails: unix.ENXIO}, Latency, false, "",
			ErrNoMapping, 1},
	} {
		t.Run(name, func(t *testing.T) {
			table := testTable()
			table.Tuning, table.Discard = c.tuning, c.discard
			err := loadTuned(table, table.Tuning.flags(), c.kernel.call)
			if !errors.Is(err, c.err) || len(c.kernel.asked) != c.asked {
				t.Errorf("%v after %q; want %v after %d", err, c.kernel.asked, c.err, c.asked)
			}

			taken := c.kernel.taken
			if c.want == "" {
				if taken != "" {
					t.Errorf("taken: %q", taken)
				}
				return
			}

			if !strings.HasSuffix(taken, c.want) {
				t.Errorf("taken: %q, want %q at its end", taken, c.want)
			}

			// These are the properties that a mapping must have when it has been made, and whenever
			// it is found.
			m := table.Mapping()
			m.Targets[0].params = taken
			if d := table.Differs(m); d != "" {
				t.Errorf("the mapping differs from the table: %s", d)
			}
		})
	}
}

// The flags that a tuning adds, and a fallback leaves out, only change the speed of a mapping
// (Documentation/admin-guide/device-mapper/dm-crypt.rst).
func TestClassesOnlyTune(t *testing.T) {
	only := []string{"submit_from_crypt_cpus", "no_read_workqueue", "no_write_workqueue"}
	for _, flag := range append(append(slices.Clone(tuningFlags), Throughput.flags()...),
		Latency.flags()...) {
		if !slices.Contains(only, flag) {
			t.Errorf("%s is left out where the kernel does not know it, and is not compared", flag)
		}
	}
	if flags := Tuning("").flags(); len(flags) != 0 {
		t.Errorf("the empty tuning has the flags %q", flags)
	}
}

// dm-crypt's flags for latency are only used on a kernel where they are safe, or if the operator
// requests them.
func TestLatencyFlagsNeedAGoodKernel(t *testing.T) {
	for release, want := range map[string]bool{
		"6.8.0": true, "6.12.48-cloud-amd64": true, "7.0.0-rc1": true, "6.8": true,
		"6.7.12": false, "6.1.0-32-cloud-amd64": false, "5.15.0": false, "": false, "six": false,
	} {
		if got := LatencyIsSafe(release); got != want {
			t.Errorf("%q: %v, want %v", release, got, want)
		}
	}
	if f := (Kernel{}).flags(Latency); f != nil {
		t.Errorf("flags %v by default", f)
	}
	if f := (Kernel{Inline: true}).flags(Latency); len(f) != 2 {
		t.Errorf("flags %v as requested", f)
	}
	if f := (Kernel{}).flags(Throughput); len(f) != 1 {
		t.Errorf("flags %v for throughput", f)
	}
}
