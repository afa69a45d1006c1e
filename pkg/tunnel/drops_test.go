package tunnel

import (
	"bufio"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// What veil-wg counts is read whole or not at all; one that does not count is no error.
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
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			asked := make(chan string, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				line, _ := bufio.NewReader(c).ReadString('\n')
				asked <- line
				_, _ = c.Write([]byte(tt.answer))
			}()

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
