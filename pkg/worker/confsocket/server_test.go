package confsocket

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn/bindtest"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/worker/logs"
)

// newDevice returns a device of the library whose TUN and sockets are in memory.
func newDevice(t *testing.T) *device.Device {
	t.Helper()
	d := device.NewDevice(tuntest.NewChannelTUN().TUN(), bindtest.NewChannelBinds()[0],
		logs.NewLogger(slog.New(slog.DiscardHandler), false))
	t.Cleanup(d.Close)
	return d
}

func setText(peers int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "private_key=%064x\nfwmark=77\n", 0x40)
	for i := range peers {
		fmt.Fprintf(&b, "public_key=%064x\nendpoint=198.18.0.1:%d\nallowed_ip=198.19.%d.0/24\n",
			i+9, i+1000, i)
	}
	return b.String()
}

func TestStateSurvivesARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "veil0.state")
	first := &Server{Device: newDevice(t), State: file}
	errtest.Must(t, first.set([]byte(setText(3))))
	second := &Server{Device: newDevice(t), State: file}
	errtest.Must(t, second.Restore(slog.New(slog.DiscardHandler)))
	var a, b bytes.Buffer
	errtest.Must(t, errors.Join(first.Device.IpcGetOperation(&a),
		second.Device.IpcGetOperation(&b)))
	if len(sorted(a)) < 10 || fmt.Sprint(sorted(a)) != fmt.Sprint(sorted(b)) {
		t.Errorf("state before\n%s\nafter\n%s", &a, &b)
	}
}

// A changed peer is kept without reading or writing the thousand others. A new process begins with
// all settings, also when the old one died while it wrote.
func TestChangedPeerIsAppendedToTheKeptState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "veil0.state")
	counted := &counting{Device: newDevice(t)}
	s := &Server{Device: counted, State: file}
	errtest.Must(t, s.set([]byte(setText(100))))
	before, gets := size(t, file), counted.gets
	changes := []string{
		fmt.Sprintf("public_key=%064x\nendpoint=198.18.0.2:1\n", 9),
		fmt.Sprintf("public_key=%064x\nreplace_allowed_ips=true\nallowed_ip=198.19.1.0/24\n", 9),
		fmt.Sprintf("public_key=%064x\nremove=true\n", 20),
		fmt.Sprintf(
			"public_key=%064x\nendpoint=198.18.0.3:1\npublic_key=%064x\nendpoint=198.18.0.4:1\n",
			21, 20),
	}
	for _, c := range changes {
		errtest.Must(t, s.set([]byte(c)))
	}
	if want := before + int64(len(strings.Join(changes, ""))); counted.gets != gets ||
		size(t, file) != want {
		t.Errorf("%d readings and %d bytes, want none and %d", counted.gets-gets, size(t, file),
			want)
	}
	same := func(when string) {
		t.Helper()
		second := &Server{Device: newDevice(t), State: file}
		errtest.Must(t, second.Restore(slog.New(slog.DiscardHandler)))
		var a, b bytes.Buffer
		errtest.Must(t, errors.Join(counted.IpcGetOperation(&a),
			second.Device.IpcGetOperation(&b)))
		if fmt.Sprint(sorted(a)) != fmt.Sprint(sorted(b)) {
			t.Errorf("%s: state before\n%s\nafter\n%s", when, &a, &b)
		}
	}
	same("after the changes")

	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString("public_key=0102")
		err = errors.Join(err, f.Close())
	}
	errtest.Must(t, err)
	same("after a death in the middle of a line")
	if err := s.set([]byte(changes[0])); err != nil { // Which finds a file that is not its own.
		t.Fatal(err)
	}
	same("after another's write")
	errtest.Must(t, s.set([]byte("fwmark=5\n")))
	same("after a change of the device")
	for i := range 1000 {
		errtest.Must(t, s.set(fmt.Appendf(nil, "public_key=%064x\nendpoint=198.18.0.9:%d\n", 9,
			i+1)))
	}
	if n := size(t, file); n > 2*before {
		t.Errorf("after a thousand changes %d bytes, want at most %d", n, 2*before)
	}
	same("after a thousand changes")
	for _, bad := range []string{fmt.Sprintf(
		"public_key=%064x\nendpoint=198.18.0.5:1\ncolour=red\n", 10), "public_key=short\n"} {
		if err := s.set([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
		same("after a set that failed half way")
	}
}

// counting is a device that counts its reads.
type counting struct {
	*device.Device
	gets int
}

func (c *counting) IpcGetOperation(w io.Writer) error {
	c.gets++
	return c.Device.IpcGetOperation(w)
}

func size(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	errtest.Must(t, err)
	return info.Size()
}

func sorted(b bytes.Buffer) map[string]int {
	lines := map[string]int{}
	for line := range strings.Lines(b.String()) {
		// The port was not set: the library chose one when the TUN reported that it is up.
		if !strings.HasPrefix(line, "listen_port=") {
			lines[line]++
		}
	}
	return lines
}

func TestCorruptStateBeginsEmpty(t *testing.T) {
	file := filepath.Join(t.TempDir(), "veil0.state")
	filetest.Write(t, file, []byte(setText(2)+"public_key=short\n"), 0o600)
	var log bytes.Buffer
	s := &Server{Device: newDevice(t), State: file}
	errtest.Must(t, s.Restore(slog.New(slog.NewTextHandler(&log, nil))))
	var get bytes.Buffer
	errtest.Must(t, s.Device.IpcGetOperation(&get))
	if strings.Contains(get.String(), "public_key") ||
		strings.Contains(get.String(), "private_key") ||
		!strings.Contains(log.String(), "beginning without peers") {
		t.Errorf("state %q, log %q", &get, &log)
	}
}

func TestProtocol(t *testing.T) {
	good := "private_key=" + strings.Repeat("0", 63) + "8\n"
	for _, tc := range []struct{ name, in, want string }{
		{"set and get", "set=1\n" + good + "\nget=1\n\n", "errno=0\n\nprivate_key="},
		{"unknown key in a set", "set=1\ncolour=red\n\n", "errno=-22\n\n"},
		{"no equals sign", "set=1\ncolour\n\n", fmt.Sprintf("errno=-%d\n\n", unix.EPROTO)},
		{"unknown operation", "dance=1\n\n", ""},
		{"an end in the middle", "set=1\nprivate_", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &Server{Device: newDevice(t), State: filepath.Join(t.TempDir(), "state")}
			client, end := net.Pipe()
			go func() {
				io.WriteString(client, tc.in)
				if tc.want == "" {
					client.Close()
				}
			}()
			go s.handle(end)
			defer client.Close()

			client.SetDeadline(time.Now().Add(5 * time.Second))
			got := make([]byte, len(tc.want))
			if _, err := io.ReadFull(client, got); tc.want != "" && (err != nil ||
				string(got) != tc.want) {
				t.Errorf("answer %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

// dropper is a device with counters of drops.
type dropper struct {
	nothing
	refused uint64
}

func (d *dropper) NoteRefused() { d.refused++ }

func (d *dropper) Drops() map[string]uint64 {
	return map[string]uint64{"forged": 7, "configuration_refused": d.refused}
}

// askDevice sends a device's configuration socket a request and returns the answer.
func askDevice(t *testing.T, dev Device, text string) string {
	t.Helper()
	a, b := net.Pipe()
	s := &Server{Device: dev, State: filepath.Join(t.TempDir(), "s")}
	go s.handle(b)
	go func() { _, _ = a.Write([]byte(text)) }()
	defer a.Close()
	out := make([]byte, 512)
	n, _ := a.Read(out)
	return string(out[:n])
}

// The configuration socket reports the engine's drops, and requests that were not valid.
func TestDropsAreReported(t *testing.T) {
	d := &dropper{}
	if got := askDevice(t, d, "bogus=1\n\n"); got != "" {
		t.Errorf("an unknown operation is answered with %q", got)
	}
	want := "configuration_refused=1\nforged=7\nerrno=0\n\n"
	if got := askDevice(t, d, "drops=1\n\n"); got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
	if got := askDevice(t, &nothing{}, "drops=1\n\n"); !strings.HasPrefix(got, "errno=-") {
		t.Errorf("a device that counts nothing says %q, want an errno", got)
	}
}

// offloading is a device that has offloads and one peer.
type offloading struct {
	nothing
	told []noise.PublicKey
}

func (o *offloading) Offloads() engine.Offloads {
	return engine.Offloads{Segment: true, TCP: true, Singly: o.told}
}

func (o *offloading) SendSingly(peer noise.PublicKey) error {
	if peer != (noise.PublicKey{1}) {
		return fs.ErrNotExist
	}
	o.told = append(o.told, peer)
	return nil
}

// The configuration socket reports the offloads in use, and accepts the key of a peer to which
// datagrams are then sent one by one. A key of no peer changes nothing.
func TestOffloadsAreTold(t *testing.T) {
	key := "01" + strings.Repeat("00", 31)
	d := &offloading{}
	for _, tc := range []struct{ ask, want string }{
		{"offloads=1", "udp_segment=1\nudp_gro=0\ntun_tcp=1\ntun_udp=0\nerrno=0\n\n"},
		{"singly=" + strings.Repeat("02", 32), "errno=-2\n\n"},
		{"singly=" + key + "00", "errno=-22\n\n"},
		{"singly=xx", "errno=-22\n\n"},
		{"offloads=1", "udp_segment=1\nudp_gro=0\ntun_tcp=1\ntun_udp=0\nerrno=0\n\n"},
		{"singly=" + key, "errno=0\n\n"},
		{"offloads=1", "udp_segment=1\nudp_gro=0\ntun_tcp=1\ntun_udp=0\nsingly=" + key +
			"\nerrno=0\n\n"},
	} {
		if got := askDevice(t, d, tc.ask+"\n\n"); got != tc.want {
			t.Errorf("%s: answer %q, want %q", tc.ask, got, tc.want)
		}
	}
	for _, request := range []string{"offloads=1\n\n", "singly=" + key + "\n\n"} {
		if got := askDevice(t, &nothing{}, request); got != "errno=-95\n\n" {
			t.Errorf("a device without offloads says %q", got)
		}
	}
}

func TestUnkeptStateIsAnError(t *testing.T) {
	s := &Server{Device: newDevice(t), State: "/nonexistent/state"}
	if got := errno(s.set([]byte(setText(1)))); got != -int64(unix.EIO) {
		t.Errorf("errno %d, want EIO", got)
	}
}

func FuzzConfiguration(f *testing.F) {
	f.Add([]byte(setText(2) + "last_handshake_time_sec=1\ntx_bytes=3\nerrno=0\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		once := configuration(in)
		if twice := configuration(once); !bytes.Equal(once, twice) {
			t.Errorf("%q became %q", once, twice)
		}
	})
}

func FuzzProtocol(f *testing.F) {
	f.Add([]byte("get=1\n\nset=1\nprivate_key=00\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &Server{Device: &nothing{}, State: filepath.Join(t.TempDir(), "state")}
		s.handle(&script{Reader: bytes.NewReader(in)})
	})
}

// nothing is a device that accepts every configuration and has no state.
type nothing struct{}

func (*nothing) IpcGetOperation(io.Writer) error { return nil }

func (*nothing) IpcSetOperation(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// script is a client that sends the content of Reader.
type script struct {
	io.Reader
	bytes.Buffer
}

func (s *script) Read(p []byte) (int, error) { return s.Reader.Read(p) }

func (s *script) Close() error { return nil }
