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
)

// userHZ is the unit of /proc/stat on every architecture Linux has.
const userHZ = 100

// Busy returns the CPU time that all CPUs of this machine together have spent.
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

// ParseBusy reads the first line of /proc/stat (proc_stat(5)): user, nice,
// system, idle, iowait, irq, softirq, steal; guest time is in user already.
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

// Meter measures the CPU time that all CPUs of this machine spend, from its Start on. Busy is only
// an estimate: without full dynticks the kernel divides time into user, system and softirq at each
// tick, so a second has a few hundred samples. Meter is exact, because the clock adds up the time
// in the idle task (CONFIG_NO_HZ, get_cpu_idle_time_us in kernel/time/tick-sched.c), without the
// interrupts and softirqs in it. So Meter counts the time that is not idle, in hundredths of a
// second per CPU. Time that the hypervisor spent on others (steal) is left out.
type Meter struct {
	began  time.Time
	unused time.Duration
}

// Start begins to measure.
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

// parseUnused reads the lines of /proc/stat for single CPUs.
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

// ProcessCPU returns the CPU time that a process and its threads have spent, by
// /proc/PID/stat, in hundredths of a second.
func ProcessCPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	return parseProcessCPU(string(b))
}

// parseProcessCPU reads /proc/PID/stat (proc_pid_stat(5)), in which the name may
// hold spaces and parentheses.
func parseProcessCPU(stat string) (time.Duration, error) {
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, errors.New("read the process's stat: no name in it")
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 13 {
		return 0, errors.New("read the process's stat: too short")
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the process's stat: %w", err)
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the process's stat: %w", err)
	}
	return time.Duration(user+system) * time.Second / userHZ, nil
}

// ResidentMiB returns the resident memory of a process (VmRSS), MiB.
func ResidentMiB(pid int) (float64, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	return parseResident(string(b))
}

func parseResident(status string) (float64, error) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err != nil {
				return 0, fmt.Errorf("read the process's status: %w", err)
			}
			return kib / 1024, nil
		}
	}
	return 0, errors.New("read the process's status: no VmRSS")
}

// Others measures for d how many cores other processes keep busy. It is for the
// moment before a run, and for the reader of the figures.
func Others(ctx context.Context, d time.Duration) (cores float64, err error) {
	before, err := Busy()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(d):
	}
	after, err := Busy()
	if err != nil {
		return 0, err
	}
	return (after - before).Seconds() / time.Since(start).Seconds(), nil
}
