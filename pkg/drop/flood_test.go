package drop

import (
	"encoding/binary"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// datagram returns a broadcast frame with a UDP datagram of 4 bytes from port 4096 to port 8192.
func datagram(src, dst [4]byte) []byte {
	head := slices.Concat([]byte{0x45, 0, 0, 32, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, src[:],
		dst[:])
	var sum uint32
	for i := 0; i < len(head); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(head[i:]))
	}
	binary.BigEndian.PutUint16(head[10:], ^uint16(sum>>16+sum&0xffff))
	return slices.Concat([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 0}, head,
		[]byte{0x10, 0, 0x20, 0, 0, 12, 0, 0, 1, 2, 3, 4})
}

// cpu returns the CPU time of the process or the calling thread. who is as in getrusage(2).
func cpu(who int) (time.Duration, error) {
	var r unix.Rusage
	err := unix.Getrusage(who, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), err
}

// flooded is a node with a Feature, and a link of another namespace from which all frames are
// dropped for one reason.
type flooded struct {
	f      *Feature
	reason string
	from   *nettest.NS
	link   string
	frame  []byte
}

// floods are ways by which packets are dropped.
var floods = map[string]func(t testing.TB, flood func(flooded)){
	"program": func(t testing.TB, flood func(flooded)) {
		n := newGuarded(t)
		n.veild(func(f *Feature) { flood(flooded{f, inRange, n.peer, "u0", forged()}) })
	},
	"nftables": func(t testing.TB, flood func(flooded)) {
		n := newNode(t)
		flood(flooded{n.f, chains.Spoofed, n.addPod("scanner", 1), "eth0",
			datagram([4]byte{198, 18, 1, 9}, [4]byte{198, 18, 1, 1})})
	},
}

// floodEnv is the environment variable with which this program floods a link instead of testing.
const floodEnv = "KUBEVEIL_FLOOD"

// flood is what such a program does: it sends Frame by Link again and again for the time Lasts,
// from one thread. Sent and Took are the number of frames and the CPU time of the thread.
type flood struct {
	Link  string
	Frame []byte
	Lasts time.Duration

	Sent uint64
	Took time.Duration
}

// runFlood runs the flood that the environment describes, and prints it.
func runFlood(text string) error {
	var f flood
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return err
	}
	i, err := net.InterfaceByName(f.Link)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
		return err
	}

	runtime.LockOSThread()
	before, err := cpu(unix.RUSAGE_THREAD)
	if err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < f.Lasts; {
		for range 1000 {
			if _, err := unix.Write(fd, f.Frame); err != nil {
				return err
			}
			f.Sent++
		}
	}
	if f.Took, err = cpu(unix.RUSAGE_THREAD); err != nil {
		return err
	}
	f.Took -= before
	return json.NewEncoder(os.Stdout).Encode(f)
}

// send floods the link from another process, so that its CPU time does not count for the Feature.
func (d flooded) send(lasts time.Duration) (sent flood, err error) {
	text, err := json.Marshal(flood{Link: d.link, Frame: d.frame, Lasts: lasts})
	if err != nil {
		return sent, err
	}
	var out []byte
	err = d.from.Do(func() (err error) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.Stderr = append(os.Environ(), floodEnv+"="+string(text)), os.Stderr
		out, err = cmd.Output()
		return err
	})
	if err != nil {
		return sent, err
	}
	return sent, json.Unmarshal(out, &sent)
}

// expect waits until all sent packets are counted, and each has a sample or counts as skipped. It
// fails the test if a second has more than 200 samples. It returns the number of samples.
func (d flooded) expect(t testing.TB, before, sent uint64) int {
	t.Helper()
	var packets []telemetry.DroppedPacket
	nettest.Until(t, patience, "each packet is counted, and is a sample or skipped", func() bool {
		counts, err := d.f.counts()
		errtest.Must(t, err)
		packets, _ = d.f.ring.After(0, Size, query{reason: d.reason}.matches)
		dropped := counts.dropped[d.reason]
		return dropped == before+sent &&
			uint64(len(packets))+d.f.tally.skipped(counts)[d.reason] == dropped
	})

	for i, first := range packets {
		later := packets[i:]
		within := slices.IndexFunc(later, func(p telemetry.DroppedPacket) bool {
			return p.Time.Sub(first.Time) >= time.Second
		})
		if within > 200 || within < 0 && len(later) > 200 {
			t.Errorf("more than 200 samples in the second from %s", first.Time)
			break
		}
	}
	return len(packets)
}

// One core sends forged frames as fast as it can. All are counted, few are sampled, and the others
// count as skipped.
func TestFloodIsCountedAndSampledWithinItsLimits(t *testing.T) {
	for name, run := range floods {
		t.Run(name, func(t *testing.T) {
			run(t, func(d flooded) {
				f, err := d.send(200 * time.Millisecond)
				errtest.Must(t, err)
				samples := d.expect(t, 0, f.Sent)
				if t.Logf("%d samples of %d packets", samples, f.Sent); samples < 10 {
					t.Error("too few samples")
				}
			})
		})
	}
}

// BenchmarkFlood measures what the samples of a flood for five seconds cost. It fails if the
// Feature takes more than mostShare percent of a core, or mostMemory MiB more memory.
func BenchmarkFlood(b *testing.B) {
	const lasts, mostShare, mostMemory = 5 * time.Second, 2, 8
	for name, run := range floods {
		b.Run(name, func(b *testing.B) {
			run(b, func(d flooded) {
				total := uint64(0)
				for b.Loop() {
					var before, after runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&before)
					began, err := cpu(unix.RUSAGE_SELF)
					errtest.Must(b, err)
					f, err := d.send(lasts)
					errtest.Must(b, err)
					ended, err := cpu(unix.RUSAGE_SELF)
					errtest.Must(b, err)

					samples := d.expect(b, total, f.Sent)
					total += f.Sent
					runtime.GC()
					runtime.ReadMemStats(&after)
					b.ReportMetric(float64(f.Sent)/lasts.Seconds(), "packets/s")
					b.ReportMetric(float64(f.Sent)/f.Took.Seconds(), "packets/sender-cpu-s")
					b.ReportMetric(float64(samples), "samples")
					share := 100 * (ended - began).Seconds() / lasts.Seconds()
					b.ReportMetric(share, "veild-%-of-a-core")
					memory := (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / (1 << 20)
					b.ReportMetric(memory, "MiB-more")
					if share > mostShare || memory > mostMemory {
						b.Errorf("%.2f %% of a core, want %d at most; %.2f MiB more, want %d at most",
							share, mostShare, memory, mostMemory)
					}
				}
			})
		})
	}
}
