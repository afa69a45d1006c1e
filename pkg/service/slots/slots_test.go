package slots

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// specOf returns the spec of the outer map of a table with n slots, as bpf/lib/service/backend.h has
// it.
func specOf(n uint32) *ebpf.MapSpec {
	s := &ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4,
		InnerMap: &ebpf.MapSpec{Type: ebpf.Array, Flags: unix.BPF_F_MMAPABLE, KeySize: 4,
			ValueSize: uint32(backendSize)}}
	Resize(s, n)
	return s
}

// table makes the slots of a table with n slots.
func table(t *testing.T, n uint32) (*ebpf.Map, *Slots) {
	t.Helper()
	nettest.NeedBPF(t)
	outer, err := Make(specOf(n))
	errtest.Must(t, err)
	t.Cleanup(func() { outer.Close() })
	return outer, opened(t, outer, specOf(n))
}

func opened(t *testing.T, outer *ebpf.Map, spec *ebpf.MapSpec) *Slots {
	t.Helper()
	s, err := Open(outer, spec)
	errtest.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// numbered returns a run whose backends differ from each other. Every other version is packed.
func numbered(first uint32, n int, version byte) service.Run {
	list := make([]service.Backend, n)
	for i := range list {
		b := &list[i]
		if version%2 == 1 {
			b.Port, b.Flags = [2]byte{version, 80}, uint16(i%2)*service.FlagLocal
			b.Addr[10], b.Addr[11] = 0xff, 0xff
			binary.BigEndian.PutUint32(b.Addr[12:], first+uint32(i))
			continue
		}
		binary.BigEndian.PutUint32(b.Addr[:], first+uint32(i))
		b.Addr[15], b.Port, b.Flags = version, [2]byte{version, byte(i)}, service.FlagLocal
	}
	return service.Run{First: first, Backends: service.BackendsOf(list)}
}

// What is written is read, by the process that wrote it and by another one, in any order of the
// runs, and where a run crosses chunks.
func TestSlotsReadWhatWasWritten(t *testing.T) {
	const size = 4 * ChunkSlots
	outer, s := table(t, size)
	want := make([]service.Backend, size)
	random := rand.New(rand.NewPCG(1, 2))
	for version := range byte(20) {
		runs := []service.Run{numbered(ChunkSlots-3, 7, version),
			numbered(ChunkSlots/2, 2*ChunkSlots, version)}
		for range 200 {
			runs = append(runs, numbered(random.Uint32N(size-300), random.IntN(300), version))
		}
		runs = disjoint(runs)
		all := 0
		for _, r := range runs {
			all += r.Backends.Copy(want[r.First:], 0)
		}

		if n, err := s.Write(runs, 0); err != nil || n != all {
			t.Fatalf("wrote %d of %d slots: %v", n, all, err)
		}
		for name, from := range map[string]*Slots{"writer": s, "reader": opened(t, outer, nil)} {
			if got, err := from.Read(size); err != nil || !slices.Equal(got, want[:len(got)]) {
				t.Fatalf("version %d: the %s reads other slots, %v", version, name, err)
			}
		}
	}
}

// disjoint returns the runs that overlap none before them.
func disjoint(runs []service.Run) (all []service.Run) {
	for _, r := range runs {
		if !slices.ContainsFunc(all, func(o service.Run) bool {
			return r.First < o.First+uint32(o.Backends.Len()) &&
				o.First < r.First+uint32(r.Backends.Len())
		}) {
			all = append(all, r)
		}
	}
	return all
}

func TestChunksFollowTheRuns(t *testing.T) {
	outer, s := table(t, 64*ChunkSlots)
	if len(s.chunks) != 1 {
		t.Errorf("an empty table has %d chunks", len(s.chunks))
	}
	for _, step := range []struct {
		first uint32
		n     int
		want  int
	}{
		{0, 100, 1}, {ChunkSlots - 1, 1, 1}, {63 * ChunkSlots, 1, 2},
		{2*ChunkSlots - 1, 2, 4}, {10 * ChunkSlots, 20 * ChunkSlots, 24}, {5, 5, 24},
	} {
		errtest.Must(t, errtest.Of(s.Write([]service.Run{numbered(step.first, step.n, 1)}, 0)))
		if got := len(opened(t, outer, nil).chunks); got != step.want || len(s.chunks) != got {
			t.Errorf("%d slots from %d: %d chunks, want %d", step.n, step.first, got, step.want)
		}
	}

	if got, err := s.Read(3 * ChunkSlots); err != nil || len(got) != 3*ChunkSlots ||
		got[ChunkSlots] != (service.Backend{}) {
		t.Errorf("%d slots, %v", len(got), err)
	}
}

// A write that needs a chunk makes all that later ones will need, and no other write does.
func TestChunksAreMadeAhead(t *testing.T) {
	_, s := table(t, 64*ChunkSlots)
	for _, step := range []struct {
		first, room uint32
		want        int
	}{{0, 40 * ChunkSlots, 1}, {9 * ChunkSlots, 5*ChunkSlots + 1, 6}, {ChunkSlots, 0, 6},
		{20 * ChunkSlots, 1<<32 - 1, 64}} {
		errtest.Must(t, errtest.Of(s.Write([]service.Run{numbered(step.first, 5, 1)}, step.room)))
		if got := len(s.chunks); got != step.want {
			t.Errorf("a run at %d with room for %d: %d chunks, want %d", step.first, step.room, got,
				step.want)
		}
	}
	errtest.Must(t, s.Release([]uint32{63}))
	if got := len(s.chunks); got != 4+spareChunks { // four have a run
		t.Errorf("%d chunks stay", got)
	}
}

// Some unused chunks stay, and all others go. A chunk that is written again is used.
func TestUnusedChunksAreRemoved(t *testing.T) {
	outer, s := table(t, 64*ChunkSlots)
	all := numbered(0, 20*ChunkSlots, 1)
	errtest.Must(t, errtest.Of(s.Write([]service.Run{all}, 0)))
	expect := func(want int) {
		t.Helper()
		if got := len(opened(t, outer, nil).chunks); got != want || len(s.chunks) != want {
			t.Errorf("%d chunks, and %d are known, want %d", got, len(s.chunks), want)
		}
	}
	errtest.Must(t, s.Release([]uint32{3, 5, 7, 9, 60}))
	expect(20)
	errtest.Must(t, s.Release([]uint32{11, 12}))
	expect(18)

	errtest.Must(t, errtest.Of(s.Write([]service.Run{numbered(3*ChunkSlots, 5, 1)}, 0)))
	errtest.Must(t, s.Release([]uint32{13}))
	expect(18)
	errtest.Must(t, errtest.Of(s.Write([]service.Run{numbered(12*ChunkSlots, 5, 2)}, 0)))
	expect(19)
	if got, err := s.Read(12*ChunkSlots + 6); err != nil ||
		got[12*ChunkSlots] != numbered(12*ChunkSlots, 5, 2).Backends.At(0) ||
		got[12*ChunkSlots+5] != (service.Backend{}) {
		t.Errorf("%v; slots of a new chunk: %v", err, got[12*ChunkSlots:])
	}
}

// A program finds a slot by two look-ups.
func TestLookUpFindsASlot(t *testing.T) {
	outer, s := table(t, 2*ChunkSlots)
	run := numbered(ChunkSlots-2, 4, 7)
	errtest.Must(t, errtest.Of(s.Write([]service.Run{run}, 0)))
	for i := range run.Backends.Len() {
		at, want := run.First+uint32(i), run.Backends.At(i)
		chunk, err := open(outer, at/ChunkSlots)
		errtest.Must(t, err)
		var got service.Backend
		if err := chunk.Lookup(at%ChunkSlots, &got); err != nil || got != want {
			t.Errorf("slot %d is %v, %v, want %v", at, got, err, want)
		}
		chunk.Close()
	}
}

func TestRunsBeyondTheTableAreRefused(t *testing.T) {
	for _, size := range []uint32{512, ChunkSlots, 2 * ChunkSlots} {
		_, s := table(t, size)
		if _, err := s.Write([]service.Run{numbered(size-1, 1, 1)}, 0); err != nil {
			t.Errorf("last of %d slots: %v", size, err)
		}
		beyond := []service.Run{numbered(size-1, 2, 2)}
		if n, err := s.Write(beyond, 0); !errors.Is(err, unix.E2BIG) {
			t.Errorf("beyond %d slots: wrote %d, %v", size, n, err)
		}
	}
	outer, _ := table(t, 2*ChunkSlots)
	if _, err := opened(t, outer, nil).Write([]service.Run{numbered(ChunkSlots, 1,
		1)}, 0); err == nil {
		t.Error("slots that are open for reading grew")
	}
}

func TestChunksOfAnotherTableDoNotFit(t *testing.T) {
	small, _ := table(t, 512)
	large, _ := table(t, 2*ChunkSlots)
	other := specOf(512)
	other.InnerMap.ValueSize += 8
	for name, c := range map[string]struct {
		outer      *ebpf.Map
		spec       *ebpf.MapSpec
		fits, same bool
	}{
		"its own":        {small, specOf(512), true, true},
		"its own, large": {large, specOf(2 * ChunkSlots), true, true},
		"another size":   {small, specOf(1024), false, true},
		"smaller":        {large, specOf(512), false, true},
		"another layout": {small, other, false, false},
	} {
		if got := Fits(c.outer, c.spec) == nil; got != c.fits {
			t.Errorf("%s: fits is %t", name, got)
		}
		if got := SameLayout(c.outer, c.spec); got != c.same {
			t.Errorf("%s: the same layout is %t", name, got)
		}
	}

	bare, err := ebpf.NewMap(specOf(512))
	errtest.Must(t, err)
	defer bare.Close()
	if err := Fits(bare, specOf(512)); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("a table without a chunk: %v", err)
	}
}

func BenchmarkWrite(b *testing.B) {
	nettest.NeedBPF(b)
	outer, err := Make(specOf(1 << 21))
	errtest.Must(b, err)
	defer outer.Close()
	s, err := Open(outer, specOf(1<<21))
	errtest.Must(b, err)
	defer s.Close()
	for name, run := range map[string]service.Run{
		"one": numbered(5, 1, 1), "100": numbered(1<<19, 100, 1), "100000": numbered(1<<20, 100000, 1),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				errtest.Must(b, errtest.Of(s.Write([]service.Run{run}, 0)))
			}
		})
	}
}

// BenchmarkOpen opens the slots of a table of the default size, which `veild` does when it starts.
func BenchmarkOpen(b *testing.B) {
	nettest.NeedBPF(b)
	spec := specOf(service.DefaultLimits.BackendSlots)
	outer, err := Make(spec)
	errtest.Must(b, err)
	defer outer.Close()
	for b.Loop() {
		s, err := Open(outer, spec)
		errtest.Must(b, err)
		errtest.Check(b, s.Close())
	}
}
