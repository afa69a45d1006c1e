package drop

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func all(telemetry.DroppedPacket) bool { return true }

// One pod scans while packets of 600 other pods are denied once per minute.
func TestScanningPodHidesNoOtherPod(t *testing.T) {
	r := NewRing(Size, 7)
	const others, perSecond = 600, 100
	for second := range 60 {
		for range perSecond {
			r.Add("scanner", telemetry.DroppedPacket{Reason: "scan"})
		}
		for i := range others / 60 {
			r.Add(fmt.Sprint("pod-", second*others/60+i), telemetry.DroppedPacket{Reason: "denied"})
		}
	}
	seen := 0
	packets, last := r.After(0, Size, all)
	for i, p := range packets {
		if p.Reason == "denied" {
			seen++
		}
		if i > 0 && p.Number <= packets[i-1].Number {
			t.Fatalf("number %d after %d", p.Number, packets[i-1].Number)
		}
	}
	if seen != others || last != 7+60*perSecond+others {
		t.Errorf("%d of %d denials are kept, the last number is %d", seen, others, last)
	}
}

// A pod that scans for hours gets only the room that other pods leave, and the ring never has more
// packets than its size.
func TestFullRingEvictsFromWhoHasMost(t *testing.T) {
	r := NewRing(10, 0)
	for i := range 5 {
		r.Add("quiet", telemetry.DroppedPacket{Length: i})
	}
	for range 100 {
		r.Add("noisy", telemetry.DroppedPacket{Reason: "noise"})
	}
	for i := range 3 {
		r.Add("late", telemetry.DroppedPacket{Length: i})
	}
	count := func(reason string) int {
		packets, _ := r.After(0, Size, query{reason: reason}.matches)
		return len(packets)
	}
	packets, _ := r.After(0, Size, all)
	if len(packets) != 10 || count("noise") < 3 || len(r.owned) != 3 {
		t.Errorf("%d packets, %d of the noisy pod, of %d owners", len(packets), count("noise"),
			len(r.owned))
	}
	if packets[0].Length == 0 && packets[0].Reason == "" && r.owned["quiet"] == 5 {
		t.Error("the oldest packet of the quiet pod outlived its share")
	}

	one, _ := r.After(packets[8].Number, Size, all)
	if len(one) != 1 || one[0].Number != packets[9].Number {
		t.Errorf("behind number %d: %+v", packets[8].Number, one)
	}
}

// Each dropped packet has a sample or is skipped, also when the counters are read between the two.
func TestTallyIsExact(t *testing.T) {
	var y tally
	y.begin(counts{dropped: map[string]uint64{"a": 5}})
	if y.before() != 5 {
		t.Errorf("before: %d", y.before())
	}
	for range 3 {
		y.add("a")
	}
	y.add("b")

	all := counts{dropped: map[string]uint64{"a": 15, "b": 1}}
	if got := y.skipped(all); len(got) != 1 || got["a"] != 7 {
		t.Errorf("skipped %v, want 7 of a", got)
	}
	if got := y.settled(all); len(got) != 0 {
		t.Errorf("settled too early: %v", got)
	}
	y.add("a") // the sample of a packet that was already counted at begin
	if got := y.settled(all); got["a"] != 6 {
		t.Errorf("settled %v, want 6 of a", got)
	}
	for range 6 {
		y.add("a") // samples of packets that are not in the counters yet
	}
	if got := y.settled(all); got["a"] != 6 {
		t.Errorf("settled fell to %v", got)
	}
	if got := y.skipped(counts{dropped: map[string]uint64{"a": 2}}); len(got) != 0 {
		t.Errorf("a counter that begins again: %v", got)
	}
}

// BenchmarkAddToFullRing measures Add with many owners. The kernel's limit bounds the calls per
// second.
func BenchmarkAddToFullRing(b *testing.B) {
	r := NewRing(Size, 0)
	owners := make([]string, 600)
	for i := range owners {
		owners[i] = fmt.Sprint(i)
	}
	p := telemetry.DroppedPacket{Time: time.Now()}
	for i := range Size {
		r.Add(owners[i%len(owners)], p)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		r.Add(owners[i%len(owners)], p)
	}
}
