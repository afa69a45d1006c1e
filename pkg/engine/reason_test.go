package engine

import (
	"bytes"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/bpf"
)

// The reference of drop reasons, which operators read, has every reason of the engine.
func TestEachReasonIsInTheReference(t *testing.T) {
	// Reasons that package packet never returns for a packet of that origin.
	impossible := []string{"tun_none", "tun_bad_total_length", "inner_none",
		"inner_bad_checksum_offset", "inner_bad_gso", "inner_bad_segment_size",
		"inner_too_many_segments"}
	var want, have []string
	for r := range reasonCount {
		if name := r.String(); !slices.Contains(impossible, name) {
			want = append(want, name)
		}
	}
	for _, r := range bpf.EngineReasons {
		have = append(have, r.Name)
	}
	if slices.Sort(want); !slices.Equal(slices.Sorted(slices.Values(have)), want) {
		t.Errorf("the reference has\n%q\nwant\n%q", have, want)
	}
}

// A request that is refused is counted.
func TestRefusedConfigurationIsCounted(t *testing.T) {
	d, _ := quiet(t)
	for i, text := range []string{"private_key=xyz\n", "no line", "listen_port=70000\n"} {
		if err := d.IpcSetOperation(bytes.NewReader([]byte(text))); err == nil {
			t.Errorf("%q is taken", text)
		}
		if got := d.Drops()["configuration_refused"]; got != uint64(i+1) {
			t.Errorf("%d refused requests are counted, want %d", got, i+1)
		}
	}
}
