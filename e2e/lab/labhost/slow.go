package labhost

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

// Slow returns d for an idle machine, and more on one that is busy: d times the number of tasks per
// CPU that run or wait for one. Other programs of the machine then delay what has a time limit, so
// a limit says nothing without it. It returns d if the load is not known.
func Slow(d time.Duration) time.Duration {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return d
	}
	return slowed(d, string(text), runtime.NumCPU())
}

// slowed is Slow for the text of /proc/loadavg. Its mean of the last minute lags behind, so the
// tasks that run now count too, without the one that reads.
func slowed(d time.Duration, loadavg string, cpus int) time.Duration {
	var minute, five, fifteen float64
	var running int
	if _, err := fmt.Sscanf(loadavg, "%f %f %f %d/", &minute, &five, &fifteen,
		&running); err != nil {
		return d
	}
	return time.Duration(float64(d) * max(1, max(minute, float64(running-1))/float64(cpus)))
}
