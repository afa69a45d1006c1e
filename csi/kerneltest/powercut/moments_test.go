package powercut

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

const (
	// logEnv is the environment variable with the path of the log.
	logEnv = "KUBEVEIL_POWERCUT_LOG"
	// momentsEnv is the environment variable with the number of moments that are checked in
	// addition to all writes of metadata.
	momentsEnv     = "KUBEVEIL_POWERCUT_MOMENTS"
	defaultMoments = 200
)

// TestPowerCut checks a disk at many moments of a volume's life. Package e2e/disk records the log.
func TestPowerCut(t *testing.T) {
	path := os.Getenv(logEnv)
	if path == "" {
		nettest.Skip(t, nettest.Short, "make power-cut records a log and sets "+logEnv)
	}

	nettest.NeedRoot(t)
	needTools(t)
	n := defaultMoments
	if text := os.Getenv(momentsEnv); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 0 {
			t.Fatalf("%s=%q: want a number of moments", momentsEnv, text)
		}
	}

	f, err := os.Open(path)
	errtest.Must(t, err)
	defer f.Close()
	info, err := f.Stat()
	errtest.Must(t, err)
	log, err := Read(f, info.Size())
	errtest.Must(t, err)

	checkCoverage(t, log)
	v := newVerifier(t, log)
	seed := uint64(time.Now().UnixNano())
	start := time.Now()
	t.Logf("%d entries and %d marks in %s; moments are chosen with seed %d", len(log.Entries),
		len(v.marks), path, seed)
	err = v.all(n, rand.New(rand.NewPCG(seed, 0)))
	t.Logf("looked %d times, %d of them at a file system, in %v", v.looked, v.checked,
		time.Since(start).Round(time.Second))
	if err != nil {
		t.Error(err)
	}

	checkControl(t, log)
}

// checkCoverage checks that the log has all parts of the workload. A log without them would prove
// nothing.
func checkCoverage(t *testing.T, log *Log) {
	t.Helper()
	marks, err := Marks(log, marksStart, marksSize)
	errtest.Must(t, err)
	flushes, metadata := 0, 0
	for _, e := range log.Entries {
		if e.Flags&Flush != 0 {
			flushes++
		}
		if e.Length > 0 && e.Offset >= volumeStart && e.Offset < volumeStart+crypt.DataOffset {
			metadata++
		}
	}
	last := marks[len(marks)-1]
	const files = (cycles + 2) * filesPerCycle
	// The metadata is written by formatting and by each closing, opening and expansion. Each of the
	// latter writes two records. Openings outnumber closings by one, because the last opening is
	// not followed by a closing.
	if want := 3 + 2*(2*cycles+2); metadata < want || flushes < want || last.Files != files ||
		last.Volume.Payload != lastPayload {
		t.Errorf("the log has %d writes to the metadata, %d flushes, %d files and a payload of "+
			"%d; want at least %d, %d and exactly %d, %d",
			metadata, flushes, last.Files, last.Volume.Payload, want, want, files,
			int64(lastPayload))
	}
}

// checkControl checks that the verifier detects, in this log, a disk that is older than its state.
func checkControl(t *testing.T, log *Log) {
	t.Helper()
	v := newVerifier(t, log)
	last := v.marks[len(v.marks)-1]
	for _, m := range v.marks {
		if m.Volume.Epoch+2 != last.Volume.Epoch {
			continue
		}
		d, err := v.replay.At(m.Moment, nil)
		errtest.Must(t, err)
		if err := v.check(d.Part(volumeStart, volumeSize), last.TrustedState); !errors.Is(err,
			crypt.OlderImage) {
			t.Errorf("the control, an older disk: %v", err)
		}
		return
	}
	t.Error("no moment for the control")
}
