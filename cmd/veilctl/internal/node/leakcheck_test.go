package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// begun is an output that calls do at the first write. leakcheck writes once it reads the links.
type begun struct {
	bytes.Buffer
	do func()
}

func (b *begun) Write(p []byte) (int, error) {
	if b.do != nil {
		b.do()
		b.do = nil
	}
	return b.Buffer.Write(p)
}

// leakcheck reads a link without the guard too, and names it. It names a link that it did not read,
// as one that was added meanwhile. Both fail: no frame of such a link was judged.
func TestLeakcheckReadsLinksWithoutTheGuard(t *testing.T) {
	nettest.NeedRoot(t)
	host, far := nettest.NewNS(t), nettest.NewNS(t)
	for _, link := range []string{"eth0", "eth1"} {
		nettest.Veth(t, nettest.End{NS: host, Name: link}, nettest.End{NS: far, Name: link})
	}
	guard := telemetry.Guard{InForce: false, Links: []string{"eth0"}, Unguarded: []string{"eth1"},
		Ranges: nettest.Prefixes("198.18.0.0/16")}
	inClear := slices.Concat(make([]byte, 12), []byte{8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0,
		198, 18, 1, 5, 192, 0, 2, 1, 0x10, 0, 0x20, 0, 0, 12, 0, 0, 1, 2, 3, 4})

	check := func(ctx context.Context, g telemetry.Guard, out io.Writer, args ...string) error {
		cmd := Leakcheck()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetOut(out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append(args, "--socket", verbtest.Daemon(t, telemetry.Status{Guard: g}, true, nil)))
		return host.Do(func() error { return cmd.ExecuteContext(ctx) })
	}

	ctx, cancel := context.WithCancel(t.Context())
	out := &begun{do: func() {
		far.Run(t, func() error { return nettest.SendFrames("eth1", inClear) })
		cancel()
	}}
	if err := check(ctx, guard, out, "--for", "1h"); !errors.Is(err, verb.ErrWrong) {
		t.Errorf("a frame in clear on a link without the guard: %v", err)
	}
	for _, want := range []string{"1 with an address of the cluster in clear",
		"without the guard: eth1", "LEAK"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}

	guard.Unguarded = []string{"eth1", "gone0"}
	var text bytes.Buffer
	if err := check(t.Context(), guard, &text, "--for", "1ms", "-o", "json"); !errors.Is(err,
		verb.ErrWrong) {
		t.Errorf("a link that cannot be read: %v", err)
	}
	var r LeakReport
	if err := json.Unmarshal(text.Bytes(), &r); err != nil || !slices.Equal(r.Links,
		[]string{"eth0", "eth1"}) || !slices.Equal(r.Unread, []string{"gone0"}) {
		t.Errorf("%v: %s", err, text.Bytes())
	}
}

// A link that appears during the check was not read from the beginning.
func TestLeakcheckNamesLinksThatWereAddedMeanwhile(t *testing.T) {
	r := LeakReport{Links: []string{"eth0"}, Unread: []string{"eth7"}}
	r.noteUnread(telemetry.Guard{Links: []string{"eth0", "eth1"}, Unguarded: []string{"eth7"}}, nil)
	r.noteUnread(telemetry.Guard{}, errors.New("veild is away"))
	if len(r.Unread) != 3 || r.Unread[1] != "eth1" || !strings.Contains(r.Unread[2], "away") {
		t.Errorf("unread %q", r.Unread)
	}
}
