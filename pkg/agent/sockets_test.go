package agent

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kubeveil/kubeveil/internal/sockdiag"
)

func TestSocketsAreClosedInAllNamespaces(t *testing.T) {
	const own = "/proc/self/ns/net"
	wrong := errors.New("wrong")
	for name, c := range map[string]struct {
		err           error
		closed, asked int
	}{
		"all":                      {nil, 3, 3},
		"one after another's fail": {wrong, 3, 3},
		"by no kernel":             {fmt.Errorf("close: %w", sockdiag.ErrNotSupported), 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			closed, err := closeIn([]string{own, "/nowhere", own, own},
				func() bool { return true }, func() (int, error) { asked++; return 1, c.err })
			if closed != c.closed || asked != c.asked || !errors.Is(err, c.err) {
				t.Errorf("asked %d namespaces, closed %d, %v", asked, closed, err)
			}
		})
	}
}

func TestClosingEndsWhenTheServerAnswers(t *testing.T) {
	const own = "/proc/self/ns/net"
	asked := 0
	closed, err := closeIn([]string{own, own, own}, func() bool { return asked < 2 },
		func() (int, error) { asked++; return 1, nil })
	if closed != 2 || err != nil {
		t.Errorf("closed %d sockets: %v, want 2", closed, err)
	}
}
