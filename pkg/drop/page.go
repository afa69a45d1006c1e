package drop

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// PageSize bounds the packets of one answer. A packet has at most some 5 KiB: two names of pods,
// the name of a node, the names of eight policies, and the text of a rule.
const PageSize = 1024

// Pages returns the admin socket's page of dropped packets.
func (f *Feature) Pages() map[string]admin.Page {
	return map[string]admin.Page{telemetry.DropsPath: f.page}
}

// query selects packets. Empty strings and the zero time select all packets.
type query struct {
	after       uint64
	reason, pod string
	since       time.Time
}

func (q query) matches(p telemetry.DroppedPacket) bool {
	return (q.reason == "" || p.Reason == q.reason) && !p.Time.Before(q.since) &&
		(q.pod == "" || p.SrcPod == q.pod || p.DstPod == q.pod)
}

func (f *Feature) page(r *http.Request) (any, error) {
	q, err := f.query(r)
	if err != nil {
		return nil, err
	}
	var d telemetry.Drops
	if q.after == 0 && f.o.Tunnels != nil { // reading the devices costs more than the samples
		if d.Tunnels, err = f.o.Tunnels(); err != nil {
			d.Unread = err.Error()
		}
	}
	counts, err := f.counts()
	if err != nil {
		return nil, err
	}
	d.DropSamples, d.Before = f.samples(), f.before()
	d.Skipped = f.tally.skipped(counts)

	// Samples come last. All other steps may wait for the kernel, and the answer must have what was
	// sampled meanwhile.
	d.Packets, d.Last = f.ring.After(q.after, PageSize, q.matches)
	d.More = len(d.Packets) == PageSize
	return d, nil
}

// query parses the query of a request. The error for an unknown name lists the known names.
func (f *Feature) query(r *http.Request) (q query, err error) {
	q.reason, q.pod = r.FormValue("reason"), r.FormValue("pod")
	if text := r.FormValue("after"); text != "" {
		if q.after, err = strconv.ParseUint(text, 10, 64); err != nil {
			return q, fmt.Errorf("after: %w", err)
		}
	}
	if text := r.FormValue("since"); text != "" {
		if q.since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return q, fmt.Errorf("since: %w", err)
		}
	}
	if q.reason != "" && !f.knows(q.reason) {
		return q, fmt.Errorf("no drop reason is called %q: write one of %s", q.reason,
			strings.Join(slices.Sorted(slices.Values(f.o.Reasons)), ", "))
	}
	if q.pod != "" {
		return q, f.checkPod(q.pod)
	}
	return q, nil
}

// checkPod returns an error if neither a pod of this node nor a kept packet has the name.
func (f *Feature) checkPod(name string) error {
	f.mu.Lock()
	pods := f.names.pods(time.Now())
	f.mu.Unlock()
	kept, _ := f.ring.After(0, 1, query{pod: name}.matches)
	if slices.Contains(pods, name) || len(kept) > 0 {
		return nil
	}
	return admin.NotHere(name, pods)
}
