package bench

import (
	"fmt"
	"math"
	"time"
)

// Unit is the unit of a case.
type Unit string

// Units.
const (
	// Mbps is 10^6 bits of payload per second.
	Mbps Unit = "Mbit/s"
	// Millisecond is a latency or duration.
	Millisecond Unit = "ms"
	// CoreSecondsPerGB is CPU time of the whole machine, all namespaces and the load generator
	// included, per 10^9 bytes of payload.
	CoreSecondsPerGB Unit = "core-s/GB"
	// MiB is 2^20 bytes.
	MiB Unit = "MiB"
	// Percent is a share: 100 means all.
	Percent Unit = "%"
	// IOPS is the number of disk requests per second.
	IOPS Unit = "IOPS"
	// Count is a number of things.
	Count Unit = "count"
	// PerSecond is the number of things done per second, such as requests.
	PerSecond Unit = "/s"
	// Microsecond and Nanosecond are latencies or durations of single operations.
	Microsecond Unit = "µs"
	Nanosecond  Unit = "ns"
)

var units = []Unit{Mbps, Millisecond, CoreSecondsPerGB, MiB, Percent, IOPS, Count, PerSecond,
	Microsecond, Nanosecond}

// MoreIsBetter reports whether a larger value of the unit is better.
func (u Unit) MoreIsBetter() bool { return u == Mbps || u == IOPS || u == Count || u == PerSecond }

// Format returns v with at least three significant digits and the unit. A Count has no unit.
func (u Unit) Format(v float64) string {
	s := significant(v)
	if u == Count {
		return s
	}
	return s + " " + string(u)
}

// significant returns v with three significant digits, at most four of them after the point, and
// with all digits before the point.
func significant(v float64) string {
	if v == 0 {
		return "0"
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	return fmt.Sprintf("%.*f", max(0, min(digits, 4)), v)
}

// Millis returns d in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Micros returns d in microseconds.
func Micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
