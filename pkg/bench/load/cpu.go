package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/poll"
)

// userHZ is the number of ticks per second in /proc/stat, on every architecture of Linux.
const userHZ = 100

// Busy returns the CPU time that all CPUs of this machine together have spent since boot.
func Busy() (time.Duration, error) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	if !s.Scan() {
		return 0, errors.New("read /proc/stat: empty")
	}
	return ParseBusy(s.Text())
}

// ParseBusy returns the busy time from the first line of /proc/stat (proc_stat(5)): the sum of
// user, nice, system, irq and softirq. Guest time is already part of user.
func ParseBusy(line string) (time.Duration, error) {
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("read /proc/stat: unknown line %q", line)
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / userHZ, nil
}

// Meter measures the CPU time that all CPUs of this machine spend after Start. Busy is only an
// estimate: without full dynticks the kernel divides time into user, system and softirq at each
// tick, so a second has a few hundred samples. Meter subtracts idle time from elapsed time instead.
// That is exact to a hundredth of a second per CPU, because the kernel measures idle time by the
// clock (CONFIG_NO_HZ, get_cpu_idle_time_us in kernel/time/tick-sched.c), without interrupts and
// softirqs. Time that the hypervisor gave to other guests (steal) does not count.
type Meter struct {
	began  time.Time
	unused time.Duration
}

// Start returns a Meter that measures from now on.
func Start() (m Meter, err error) {
	m.unused, _, err = unused()
	m.began = time.Now()
	return m, err
}

// Stop returns the CPU time spent since Start, and the time that passed.
func (m Meter) Stop() (spent, took time.Duration, err error) {
	took = time.Since(m.began)
	end, cpus, err := unused()
	return max(0, time.Duration(cpus)*took-(end-m.unused)), took, err
}

// unused returns the time in which CPUs were idle or stolen from this machine, and the number of
// CPUs.
func unused() (sum time.Duration, cpus int, err error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	return parseUnused(string(b))
}

// parseUnused returns the result of unused from the lines of /proc/stat for single CPUs.
func parseUnused(stat string) (sum time.Duration, cpus int, err error) {
	for line := range strings.Lines(stat) {
		fields := strings.Fields(line)
		if len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu") || fields[0] == "cpu" {
			continue
		}
		cpus++
		for _, i := range []int{4, 5, 8} { // idle, iowait, steal
			n, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				return 0, 0, fmt.Errorf("read /proc/stat: %w", err)
			}
			sum += time.Duration(n) * time.Second / userHZ
		}
	}
	if cpus == 0 {
		return 0, 0, errors.New("read /proc/stat: no CPU")
	}
	return sum, cpus, nil
}

// ProcessCPU returns the CPU time that processes and all threads that they had have spent, in user
// space and in the kernel. Process 0 is this process.
func ProcessCPU(pids ...int) (sum time.Duration, err error) {
	for _, pid := range pids {
		const scheduler = 2 // CPUCLOCK_SCHED of the kernel: exact, not by ticks
		var t unix.Timespec
		if err := unix.ClockGettime(^int32(pid)<<3|scheduler, &t); err != nil {
			return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
		}
		sum += time.Duration(t.Nano())
	}
	return sum, nil
}

// OwnCPU returns the CPU time that this process has spent.
func OwnCPU() time.Duration {
	spent, _ := ProcessCPU(0) // This clock always exists.
	return spent
}

// ResidentMiB returns the resident memory of processes in MiB (VmRSS).
func ResidentMiB(pids ...int) (sum float64, err error) { return memory("VmRSS:", pids) }

// PeakMiB returns the sum of the peaks of the processes' resident memory in MiB (VmHWM).
func PeakMiB(pids ...int) (sum float64, err error) { return memory("VmHWM:", pids) }

// memory returns the sum of a field of /proc/PID/status in MiB.
func memory(field string, pids []int) (sum float64, err error) {
	for _, pid := range pids {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		if err != nil {
			return 0, err
		}
		mib, err := parseMemory(string(b), field)
		if err != nil {
			return 0, err
		}
		sum += mib
	}
	return sum, nil
}

func parseMemory(status, field string) (float64, error) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err != nil {
				return 0, fmt.Errorf("read the process's status: %w", err)
			}
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("read the process's status: no %s", field)
}

// Others measures for d how many cores all processes of the machine keep busy. Callers use it
// before a run, when all of that is other work, so that readers can judge the figures.
func Others(ctx context.Context, d time.Duration) (cores float64, err error) {
	before, err := Busy()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := poll.Pause(ctx, d); err != nil {
		return 0, err
	}
	after, err := Busy()
	if err != nil {
		return 0, err
	}
	return (after - before).Seconds() / time.Since(start).Seconds(), nil
}
