package drop

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// A packet that waits for the name of its link, while the counters are read, is in the answer.
func TestAnswerHasWhatIsSampledMeanwhile(t *testing.T) {
	f := offline(t, nil)
	named, counted := make(chan struct{}), make(chan struct{})
	f.names.find = func(int) (link, error) {
		close(named)
		<-counted
		return link{"eth0", 0}, nil
	}
	f.o.Counters = func() (map[string]uint64, error) {
		close(counted)
		return map[string]uint64{"to_loopback": 1}, nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		f.Sampled(packet("192.0.2.1", "198.18.1.5", 2, 0),
			telemetry.DroppedPacket{Reason: "to_loopback"})
	})
	<-named

	answer, err := f.page(httptest.NewRequest(http.MethodGet, telemetry.DropsPath, nil))
	if d, ok := answer.(telemetry.Drops); err != nil || !ok || len(d.Packets) != 1 ||
		d.Packets[0].In != "eth0" {
		t.Errorf("%+v, %v; want the packet", answer, err)
	}
}

// Answers have a bounded size, and together all packets, each once.
func TestAnswersAreBoundedInBytes(t *testing.T) {
	f := offline(t, map[int]link{2: {"eth0", 0}})
	name := strings.Repeat("n", 63) + "/" + strings.Repeat("n", 253)
	largest := telemetry.DroppedPacket{Reason: "policy_ingress", SrcPod: name, DstPod: name,
		Policies: slices.Repeat([]string{name}, 8), MorePolicies: 9992,
		Rule: strings.Repeat("r", 512)}
	for range Size {
		f.Sampled(packet("2001:db8::1", "2001:db8::2", 2, 2), largest)
	}

	after, seen := uint64(0), 0
	for more := true; more; {
		answer, err := f.page(httptest.NewRequest(http.MethodGet,
			fmt.Sprint(telemetry.DropsPath, "?after=", after), nil))
		errtest.Must(t, err)
		d := answer.(telemetry.Drops)
		text, err := json.Marshal(d)
		if err != nil || len(text) > 6<<20 {
			t.Errorf("%v; an answer has %d bytes", err, len(text))
		}
		for _, p := range d.Packets {
			if p.Number <= after {
				t.Fatalf("number %d again", p.Number)
			}
			after = p.Number
		}
		seen, more = seen+len(d.Packets), d.More
		if d.Last < after {
			t.Errorf("last number %d, want at least %d", d.Last, after)
		}
	}
	if seen != Size {
		t.Errorf("%d packets, want %d", seen, Size)
	}
}

func TestPageChoosesPackets(t *testing.T) {
	f := offline(t, map[int]link{2: {"eth0", 0}})
	link := recordOf(t, f.o.Paths.PodDir, "web", "198.18.1.5")
	in := packet("192.0.2.1", "198.18.1.5", 2, 0)
	f.Sampled(in, telemetry.DroppedPacket{Reason: "to_loopback"})
	f.Sampled(packet("198.18.2.9", "198.18.1.7", 2, 0), telemetry.DroppedPacket{
		Reason: "policy_ingress", SrcPod: "shop/gone"})
	f.Sampled(in, telemetry.DroppedPacket{Reason: "other"})
	f.Sampled(nflog.Packet{In: 2}, telemetry.DroppedPacket{Reason: "to_loopback"})

	f.o.Tunnels = func() (map[string]uint64, error) { return map[string]uint64{"no_route": 2}, nil }
	first, _ := f.ring.After(0, Size, all)
	for name, c := range map[string]struct {
		query string
		count int
		err   string
	}{
		"all":               {"", 3, ""},
		"a reason":          {"?reason=policy_ingress", 1, ""},
		"a pod":             {"?pod=shop/web", 1, ""},
		"a pod that ended":  {"?pod=shop/gone", 1, ""},
		"after the first":   {fmt.Sprintf("?after=%d", first[0].Number), 2, ""},
		"since later":       {"?since=2999-01-01T00:00:00Z", 0, ""},
		"an unknown reason": {"?reason=spoofed", 0, "policy_ingress, to_loopback"},
		"an unknown pod":    {"?pod=web", 0, "its pods are shop/web"},
		"no time":           {"?since=10m", 0, "since: "},
		"no number":         {"?after=-1", 0, "after: "},
	} {
		t.Run(name, func(t *testing.T) {
			page := f.Pages()[telemetry.DropsPath]
			answer, err := page(httptest.NewRequest(http.MethodGet, telemetry.DropsPath+c.query, nil))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want one with %q", err, c.err)
				}
				return
			}
			d, ok := answer.(telemetry.Drops)
			if err != nil || !ok || len(d.Packets) != c.count || d.Last != first[2].Number {
				t.Errorf("%+v, %v; want %d packets", answer, err, c.count)
			}
			if counted := d.Tunnels["no_route"] == 2; counted == strings.Contains(c.query, "after") {
				t.Errorf("drops of tunnels: %v", d.Tunnels)
			}
		})
	}

	f.o.Tunnels = func() (map[string]uint64, error) { return nil, errors.New("it stands still") }
	answer, err := f.page(httptest.NewRequest(http.MethodGet, telemetry.DropsPath, nil))
	if d, ok := answer.(telemetry.Drops); err != nil || !ok || len(d.Packets) != 3 ||
		d.Unread != "it stands still" {
		t.Errorf("without the tunnels: %+v, %v; want all packets and what is missing", answer, err)
	}
	if _, err := f.query(httptest.NewRequest(http.MethodGet, "/?pod="+link, nil)); err == nil {
		t.Error("a pod is found by the name of its link")
	}
}
