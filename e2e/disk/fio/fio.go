package fio

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Job is one section of a job file. Its I/O is asynchronous and bypasses the page cache (libaio,
// direct).
type Job struct {
	Name string
	// File is the file that is read and written. Offset and Size are the used range in bytes.
	File         string
	Offset, Size int64
	// Block is fio's bs, ReadWrite its rw, and Depth its iodepth.
	Block, ReadWrite string
	Depth            int
	// Runtime is the measured time. It begins after the time Ramp, which does not count.
	Runtime, Ramp time.Duration
	// Extra are further lines of the section, such as gtod_reduce=1.
	Extra []string
}

// Text returns the job file of the jobs. fio runs all of them at the same time.
func Text(jobs []Job) string {
	var b strings.Builder
	b.WriteString("[global]\nioengine=libaio\ndirect=1\nrandrepeat=0\nverify=0\ntime_based\n")
	for _, j := range jobs {
		fmt.Fprintf(&b,
			"[%s]\nfilename=%s\noffset=%d\nsize=%d\nbs=%s\niodepth=%d\nreadwrite=%s\nruntime=%d\nramp_time=%d\n",
			j.Name, j.File, j.Offset, j.Size, j.Block, j.Depth, j.ReadWrite, seconds(j.Runtime),
			seconds(j.Ramp))
		for _, line := range j.Extra {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// seconds returns a duration in whole seconds, as fio needs it.
func seconds(d time.Duration) int { return int(d.Round(time.Second) / time.Second) }

// Command returns a shell command that runs the jobs. Parse parses its output.
func Command(jobs []Job) string {
	return "fio --output-format=json - <<'JOBS'\n" + Text(jobs) + "JOBS\n"
}

// Measured holds the figures of one job.
type Measured struct {
	Name string
	// Errors is the number of failed requests.
	Errors      int
	Read, Write Direction
}

// Direction holds the figures of a job's reads, or of its writes.
type Direction struct {
	// Ops is the number of requests, Bytes their total size.
	Ops, Bytes int64
	// IOPS is in requests per second, Rate in bytes per second.
	IOPS, Rate float64
	// P50 and P99 are percentiles of the completion latency. 0 means not measured.
	P50, P99 time.Duration
}

// Sum returns the sum of both directions of a job. P50 and P99 come from the direction with more
// requests.
func (m Measured) Sum() Direction {
	more, less := m.Read, m.Write
	if less.Ops > more.Ops {
		more, less = less, more
	}
	more.Ops += less.Ops
	more.Bytes += less.Bytes
	more.IOPS += less.IOPS
	more.Rate += less.Rate
	return more
}

// output is the part of fio's JSON that Parse needs (fio 3: HOWTO, "JSON output").
type output struct {
	Jobs []struct {
		Name   string    `json:"jobname"`
		Error  int       `json:"error"`
		Errors int       `json:"total_err"`
		Read   direction `json:"read"`
		Write  direction `json:"write"`
	} `json:"jobs"`
}

type direction struct {
	Ops   int64   `json:"total_ios"`
	Bytes int64   `json:"io_bytes"`
	IOPS  float64 `json:"iops"`
	Rate  float64 `json:"bw_bytes"`
	Clat  struct {
		Percentile map[string]int64 `json:"percentile"`
	} `json:"clat_ns"`
}

func (d direction) direction() Direction {
	return Direction{
		Ops: d.Ops, Bytes: d.Bytes, IOPS: d.IOPS, Rate: d.Rate,
		P50: time.Duration(d.Clat.Percentile["50.000000"]),
		P99: time.Duration(d.Clat.Percentile["99.000000"]),
	}
}

// Parse parses the output of fio. It skips lines that fio prints before the JSON.
func Parse(b []byte) ([]Measured, error) {
	at := bytes.IndexByte(b, '{')
	if at < 0 {
		return nil, fmt.Errorf("fio printed no JSON: %q", b[:min(len(b), 200)])
	}
	var o output
	if err := json.Unmarshal(b[at:], &o); err != nil {
		return nil, fmt.Errorf("fio's JSON: %w", err)
	}
	if len(o.Jobs) == 0 {
		return nil, errors.New("fio's JSON has no job")
	}
	var out []Measured
	for _, j := range o.Jobs {
		if j.Error != 0 {
			return nil, fmt.Errorf("fio: job %s ended with error %d", j.Name, j.Error)
		}
		out = append(out, Measured{Name: j.Name, Errors: j.Errors, Read: j.Read.direction(),
			Write: j.Write.direction()})
	}
	return out, nil
}
