package wgdevice

import (
	"bufio"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// The counters of veil-wg are read whole or not at all. A veil-wg that does not count is not an
// error.
func TestReadDrops(t *testing.T) {
	for name, tt := range map[string]struct {
		answer string
		want   map[string]uint64
	}{
		"some": {"forged=3\nno_route=18446744073709551615\nerrno=0\n\n",
			map[string]uint64{"forged": 3, "no_route": 1<<64 - 1}},
		"none yet":            {"errno=0\n\n", map[string]uint64{}},
		"an engine of others": {"errno=-95\n\n", nil},
		"an older veil-wg":    {"", nil},
		"cut off":             {"forged=3\n", nil},
		"no number":           {"forged=many\nerrno=0\n\n", nil},
		"without end":         {strings.Repeat("x", 1<<20), nil},
	} {
		t.Run(name, func(t *testing.T) {
			path, asked := answering(t, tt.answer)
			got := readDrops(path)
			if !maps.Equal(got, tt.want) || (got == nil) != (tt.want == nil) {
				t.Errorf("read %v, want %v", got, tt.want)
			}
			if line := <-asked; line != "drops=1\n" {
				t.Errorf("asked %q", line)
			}
		})
	}

	if got := readDrops(filepath.Join(t.TempDir(), "none")); got != nil {
		t.Errorf("without a socket: %v", got)
	}
}

// The offloads of a device are read whole or not at all.
func TestReadOffloads(t *testing.T) {
	key := strings.Repeat("0a", 32)
	for name, tt := range map[string]struct {
		answer string
		on     map[string]bool
		singly int
	}{
		"all": {"udp_segment=1\ntun_udp=0\nsingly=" + key + "\nerrno=0\n\n",
			map[string]bool{"udp_segment": true, "tun_udp": false}, 1},
		"an engine of others": {"errno=-95\n\n", nil, 0},
		"an older veil-wg":    {"", nil, 0},
		"no key":              {"udp_segment=1\nsingly=0a\nerrno=0\n\n", nil, 0},
		"no number":           {"udp_segment=maybe\nerrno=0\n\n", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			path, asked := answering(t, tt.answer)
			on, singly := readOffloads(path)
			if !maps.Equal(on, tt.on) || len(singly) != tt.singly {
				t.Errorf("read %v and %v, want %v and %d", on, singly, tt.on, tt.singly)
			}
			if line := <-asked; line != "offloads=1\n" {
				t.Errorf("asked %q", line)
			}
		})
	}
}

// answering makes a socket that sends answer to one client. asked receives the client's first line.
func answering(t *testing.T, answer string) (path string, asked <-chan string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	errtest.Must(t, err)
	t.Cleanup(func() { l.Close() })
	lines := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		line, _ := bufio.NewReader(c).ReadString('\n')
		lines <- line
		_, _ = c.Write([]byte(answer))
	}()
	return path, lines
}
