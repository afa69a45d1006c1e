package lab

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// loopback returns a listener on loopback that is closed when the test ends.
func loopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// named starts a server on loopback that answers with its name, and returns its addresses by
// protocol.
func named(t *testing.T, called string) map[string]string {
	t.Helper()
	l := loopback(t)
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	errtest.Must(t, err)
	t.Cleanup(func() { u.Close() })
	go nameConnections(l, called)
	go nameDatagrams(u, called)
	return map[string]string{"tcp": l.Addr().String(), "udp": u.LocalAddr().String()}
}

func TestCensus(t *testing.T) {
	for proto, to := range named(t, "a") {
		out, err := census(t.Context(), []string{"--proto", proto, "--to", to, "--count", "5",
			"--canary", "bird"})
		errtest.Must(t, err)
		if r := out.(toolresult.Census); r.Names["a"] != 5 || r.Sources["127.0.0.1"] != 5 ||
			r.Failed != 0 {
			t.Errorf("%s: %+v", proto, r)
		}
	}
}

func TestCensusWithoutAnswersSucceeds(t *testing.T) {
	l := loopback(t)
	l.Close()
	for _, proto := range []string{"tcp", "udp"} {
		out, err := census(t.Context(), []string{"--proto", proto, "--to", l.Addr().String(),
			"--count", "50", "--enough", "2"})
		errtest.Must(t, err)
		if r := out.(toolresult.Census); r.Refused != 2 || r.Failed != 2 || r.Error == "" {
			t.Errorf("%s: %+v, want two refusals and no more tries", proto, r)
		}
	}
}

func TestKeep(t *testing.T) {
	servers := named(t, "a")
	for name, args := range map[string][]string{
		"a connection":          {"--proto", "tcp", "--to", servers["tcp"]},
		"a connected socket":    {"--proto", "udp", "--to", servers["udp"]},
		"an unconnected socket": {"--proto", "udp", "--to", servers["udp"], "--unconnected"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			out, err := keep(ctx, append(args, "--interval", "1ms", "--canary", "bird"))
			errtest.Must(t, err)
			if r := out.(toolresult.Kept); r.Answered == 0 || r.Unanswered != 0 ||
				!slices.Equal(r.Names, []string{"a"}) {
				t.Errorf("%+v", r)
			}
		})
	}
}

func FuzzParseName(f *testing.F) {
	f.Add([]byte(`{"name":"a","from":"198.18.0.1:5","said":"bird"}`), "bird")
	f.Add([]byte(`{"name":"","said":"bird"}`), "bird")
	f.Add([]byte("nothing"), "")
	f.Fuzz(func(t *testing.T, b []byte, said string) {
		if a, err := parseName(b, said); err == nil && (a.Name == "" || a.Said != said) {
			t.Errorf("%q was accepted as an answer to %q: %+v", b, said, a)
		}
	})
}
