package load

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestHighest(t *testing.T) {
	for name, tt := range map[string]struct {
		search   Search
		capacity float64
		want     float64
		probes   int
		wantErr  string
	}{
		"far below the hint": {Search{Floor: 10, Ceiling: 10000, Hint: 5000, Loss: 0.005,
			Step: 1.02}, 300, 300, 30, ""},
		"far above the hint": {Search{Floor: 10, Ceiling: 10000, Hint: 100, Loss: 0.005,
			Step: 1.02}, 4000, 4000, 30, ""},
		"near the hint": {Search{Floor: 10, Ceiling: 10000, Hint: 300, Loss: 0.005,
			Step: 1.02}, 310, 310, 12, ""},
		"no hint": {Search{Floor: 10, Ceiling: 10000, Loss: 0.005, Step: 1.02},
			777, 777, 30, ""},
		"more than the ceiling": {Search{Floor: 10, Ceiling: 500, Loss: 0.005, Step: 1.02}, 900,
			500, 10, ""},
		"not even the floor": {Search{Floor: 100, Ceiling: 500, Loss: 0.005, Step: 1.02}, 50,
			0, 10, "at the floor of 100 Mbit/s"},
		"a sender at its end": {Search{Floor: 10, Ceiling: 10000, Loss: 0.005, Step: 1.02},
			150, 150, 8, ""},
		"every second probe noisy": {Search{Floor: 10, Ceiling: 1000, Loss: 0.005, Step: 1.02}, 200,
			200, 40, ""},
	} {
		t.Run(name, func(t *testing.T) {
			probes := 0
			noisy := strings.Contains(name, "noisy")
			got, err := tt.search.Highest(t.Context(),
				func(_ context.Context, mbps float64) (Datagrams, error) {
					probes++
					if noisy && probes%2 == 1 {
						return Datagrams{Mbps: mbps * 0.9, Loss: 0.1}, nil
					}
					if strings.Contains(name, "sender") {
						return Datagrams{Mbps: min(mbps, tt.capacity)}, nil
					}
					return Datagrams{Mbps: min(mbps, tt.capacity),
						Loss: max(0, 1-tt.capacity/mbps)}, nil
				})

			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want an error with %q", err, tt.wantErr)
				}
				return
			}

			errtest.Must(t, err)
			if off := math.Abs(got.Mbps/tt.want - 1); off > 0.03 {
				t.Errorf("found %.1f Mbit/s, want %.1f", got.Mbps, tt.want)
			}
			if probes > tt.probes {
				t.Errorf("%d probes, want at most %d", probes, tt.probes)
			}
		})
	}
}

func TestHighestPassesErrorsOn(t *testing.T) {
	broken := errors.New("no route to host")
	_, err := Search{Floor: 1, Ceiling: 2, Step: 1.02}.Highest(t.Context(),
		func(context.Context, float64) (Datagrams, error) {
			return Datagrams{}, broken
		})
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct {
		out     string
		want    figures
		wantErr string
	}{
		"TCP with a second left out": {
			`{"intervals":[{"sum":{"bytes":100}},{"sum":{"bytes":200}}],"end":{"sum_sent":{"bytes":200},"sum_received":{"bytes":190,"bits_per_second":2e6}}}`,
			figures{mbps: 2, bytes: 300}, "",
		},
		"UDP that lost its last packets": {
			`{"end":{"sum_sent":{"bytes":1000,"packets":10},"sum_received":{"bytes":900,"packets":9,"bits_per_second":9e6}}}`,
			figures{mbps: 9, loss: 0.1, bytes: 900}, "",
		},
		"a server that is busy": {`{"error":"error - the server is busy running a test. try again later"}`, figures{}, "busy"},
		"nothing arrived": {`{"end":{"sum_sent":{"bytes":10},"sum_received":{"bytes":0}}}`,
			figures{}, "nothing arrived"},
		"not JSON": {`iperf3: error`, figures{}, "read its answer"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse([]byte(tt.out))
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want an error with %q", err, tt.wantErr)
				}
				return
			}

			if err != nil || got.mbps != tt.want.mbps || math.Abs(got.loss-tt.want.loss) > 1e-9 ||
				got.bytes != tt.want.bytes {
				t.Errorf("%+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"end":{"sum_sent":{"bytes":1},"sum_received":{"bytes":1,"bits_per_second":1}}}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		if got, err := parse(out); err == nil && (got.bytes <= 0 || got.loss < 0) {
			t.Errorf("%q gave %+v", out, got)
		}
	})
}

func TestProcFiles(t *testing.T) {
	if got, err := ParseBusy("cpu  10 20 30 4000 50 6 7 8 9 0"); err != nil ||
		got != 730*time.Millisecond {
		t.Errorf("busy %v, %v, want 730ms: idle, iowait, steal and guest left out", got, err)
	}
	status := "Name:\tx\nVmHWM:\t   bad\nVmRSS:\t    2048 kB\n"
	if got, err := parseMemory(status, "VmRSS:"); err != nil || got != 2 {
		t.Errorf("resident %v, %v, want 2 MiB", got, err)
	}
	for _, field := range []string{"VmHWM:", "VmSwap:"} {
		if _, err := parseMemory(status, field); err == nil {
			t.Errorf("%s gave no error", field)
		}
	}

	sum, cpus, err := parseUnused("cpu  1 2 3 4 5 6 7 8 9 0\ncpu0 1 1 1 100 20 1 1 3 0 0\n" +
		"cpu1 1 1 1 200 0 1 1 0 0 0\nintr 5 6 7 8 9 10 11 12 13\n")
	if err != nil || cpus != 2 || sum != 3230*time.Millisecond {
		t.Errorf("unused %v of %d CPUs, %v, want 3.23s of 2: idle, iowait and steal", sum, cpus, err)
	}
	for _, bad := range []string{"", "cpu 1 2 3 4 5 6 7 8", "cpu0 1 2 3 x 5 6 7 8"} {
		if _, _, err := parseUnused(bad); err == nil {
			t.Errorf("parseUnused(%q) gave no error", bad)
		}
	}
	for _, bad := range []string{"", "cpu", "cpu a b c d e f g"} {
		if _, err := ParseBusy(bad); err == nil {
			t.Errorf("ParseBusy(%q) gave no error", bad)
		}
	}
}

// The figures of processes grow with their work, and several processes count together.
func TestProcessesAreSummed(t *testing.T) {
	own := os.Getpid()
	before, err := ProcessCPU(own)
	errtest.Must(t, err)
	for load := OwnCPU(); OwnCPU() < load+time.Millisecond; {
	}
	twice, err := ProcessCPU(own, own)
	errtest.Must(t, err)
	if twice < 2*(before+time.Millisecond) {
		t.Errorf("CPU time %v, then twice %v", before, twice)
	}
	peak, err := PeakMiB(own)
	resident, residentErr := ResidentMiB(own, own)
	errtest.Must(t, err, residentErr)
	if peak <= 0 || resident <= peak/10 {
		t.Errorf("peak %v, twice resident %v", peak, resident)
	}
	if _, err := ProcessCPU(own, 999999999); err == nil {
		t.Error("a process that is not there has a CPU time")
	}
}

// Meter measures at least the CPU time of a busy thread, to the hundredths of a second of
// /proc/stat.
func TestMeterCountsWhatIsSpent(t *testing.T) {
	m, err := Start()
	errtest.Must(t, err)
	const spin = 300 * time.Millisecond
	n := 0
	for began := time.Now(); time.Since(began) < spin; {
		n++
	}
	spent, took, err := m.Stop()
	if err != nil || took < spin || spent < spin-20*time.Millisecond {
		t.Errorf("%v of CPU in %v, %v, want at least %v (%d)", spent, took, err, spin, n)
	}
}

func TestTrafficBetweenNamespaces(t *testing.T) {
	nettest.NeedProgram(t, "iperf3")
	a, b := nettest.NewNS(t), nettest.NewNS(t)
	to := netip.MustParsePrefix("198.18.7.2/30")
	nettest.Veth(t, nettest.End{NS: a, Name: "bl0",
		Addrs: []netip.Prefix{netip.MustParsePrefix("198.18.7.1/30")}},
		nettest.End{NS: b, Name: "bl1", Addrs: []netip.Prefix{to}})
	s, err := Serve(t.Context(), b.Path())
	errtest.Must(t, err)
	defer s.Close()

	f := Flow{From: a.Path(), To: to.Addr(), Duration: time.Second}
	tcp, err := f.TCP(t.Context(), 1)
	errtest.Must(t, err)
	if tcp.Value < 10 || tcp.CPU <= 0 {
		t.Errorf("TCP gave %+v", tcp)
	}
	// A busy machine may stop the receiver for half a second. At this rate its socket's buffer
	// holds what comes meanwhile.
	udp, err := f.UDP(t.Context(), 2, UDPPayload4(1500))
	errtest.Must(t, err)

	if udp.Loss > 0.01 || udp.Mbps < 1.5 || udp.Mbps > 2.5 {
		t.Errorf("UDP at 2 Mbit/s gave %+v", udp)
	}
}

func TestServeSaysWhyItCannot(t *testing.T) {
	nettest.NeedRoot(t)
	nettest.NeedProgram(t, "iperf3")
	if _, err := Serve(t.Context(), "/proc/nowhere/ns/net"); err == nil {
		t.Error("a namespace that is not there gave no error")
	}
	ns := nettest.NewNS(t)
	if _, err := (Flow{From: ns.Path(), To: netip.MustParseAddr("198.18.7.9"),
		Duration: time.Second}).TCP(t.Context(), 1); err == nil ||
		!strings.Contains(err.Error(), "198.18.7.9") {
		t.Errorf("error %v, want an error that names the server", err)
	}
}
