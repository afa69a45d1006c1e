package slots

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// ChunkSlots is the number of slots of a chunk.
const ChunkSlots = service.ChunkSlots

const backendSize = int(unsafe.Sizeof(service.Backend{}))

// Resize sets the sizes in the spec of an outer map to those of a table with n slots.
func Resize(spec *ebpf.MapSpec, n uint32) {
	spec.MaxEntries = (n-1)/ChunkSlots + 1
	spec.InnerMap.MaxEntries = min(n, ChunkSlots)
}

// Make makes an outer map with its first chunk.
func Make(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	outer, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, err
	}
	s := &Slots{outer: outer, spec: spec.InnerMap, chunks: make(map[uint32]*ebpf.Map)}
	if err := errors.Join(s.grow([]uint32{0}), s.Close()); err != nil {
		return nil, errors.Join(err, outer.Close())
	}
	return outer, nil
}

// Fits returns an error if the chunks of an outer map have another size or layout than spec's.
func Fits(outer *ebpf.Map, spec *ebpf.MapSpec) error {
	chunk, err := open(outer, 0)
	if err != nil {
		return fmt.Errorf("first chunk: %w", err)
	}
	defer chunk.Close()
	return spec.InnerMap.Compatible(chunk)
}

// SameLayout reports whether chunks of an outer map can be read with the layout of spec. Their
// number and size may differ.
func SameLayout(outer *ebpf.Map, spec *ebpf.MapSpec) bool {
	chunk, err := open(outer, 0)
	if err != nil {
		return false
	}
	defer chunk.Close()
	in := spec.InnerMap
	return chunk.Type() == in.Type && chunk.KeySize() == in.KeySize &&
		chunk.ValueSize() == in.ValueSize && chunk.Flags() == in.Flags
}

// open opens a chunk. The error is ebpf.ErrKeyNotExist if there is none.
func open(outer *ebpf.Map, number uint32) (*ebpf.Map, error) {
	var chunk *ebpf.Map
	if err := outer.Lookup(number, &chunk); err != nil {
		return nil, err
	}
	return chunk, nil
}

// Slots are the slots of a table. Make it with Open. One goroutine may write while others read.
type Slots struct {
	outer *ebpf.Map
	spec  *ebpf.MapSpec // of a chunk; nil if Write makes none

	mu     sync.RWMutex
	chunks map[uint32]*ebpf.Map // that are in outer; one goroutine changes it, with mu
	unused map[uint32]bool      // chunks without a run
}

// Open opens the chunks of an outer map, which stays the caller's. spec describes the outer map. It
// may be nil if nothing is written.
func Open(outer *ebpf.Map, spec *ebpf.MapSpec) (*Slots, error) {
	s := &Slots{outer: outer, chunks: make(map[uint32]*ebpf.Map), unused: make(map[uint32]bool)}
	if spec != nil {
		s.spec = spec.InnerMap
	}

	// Before Linux 6.8 the kernel waits for an RCU period with each look-up in the outer map, so
	// that chunks are looked up at the same time.
	size := outer.MaxEntries()
	for first := uint32(0); first < size; first += atOnce {
		if err := s.open(first, min(first+atOnce, size)); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// open opens the chunks with numbers from first up to end, those that exist.
func (s *Slots) open(first, end uint32) error {
	chunks, errs := make([]*ebpf.Map, end-first), make([]error, end-first)
	var opens sync.WaitGroup
	for i := range chunks {
		opens.Go(func() { chunks[i], errs[i] = open(s.outer, first+uint32(i)) })
	}
	opens.Wait()

	for i, chunk := range chunks {
		number := first + uint32(i)
		switch {
		case errs[i] == nil:
			s.chunks[number] = chunk
		case errors.Is(errs[i], ebpf.ErrKeyNotExist):
			errs[i] = nil
		default:
			errs[i] = fmt.Errorf("open chunk %d: %w", number, errs[i])
		}
	}
	return errors.Join(errs...)
}

// Close closes the chunks. They stay in the outer map.
func (s *Slots) Close() error {
	var errs []error
	for _, chunk := range s.chunks {
		errs = append(errs, chunk.Close())
	}
	return errors.Join(errs...)
}

// piece is the part of a run that is in one chunk: n backends, from the one with index from on. at
// is its first slot in the chunk.
type piece struct {
	chunk, at uint32
	run       service.Backends
	from, n   int
}

func (p piece) end() uint32 { return p.at + uint32(p.n) }

// Write writes runs that have no reader, and returns the number of written slots. It first makes
// the chunks that are missing, which takes an RCU period of the kernel or two. If some are missing,
// it makes chunks for room slots in all, so that later calls need not wait.
func (s *Slots) Write(runs []service.Run, room uint32) (written int, err error) {
	pieces := cut(runs)
	if err := s.add(pieces, room); err != nil {
		return 0, err
	}

	for first := 0; first < len(pieces); {
		chunk, end := pieces[first].chunk, first+1
		delete(s.unused, chunk)
		for end < len(pieces) && pieces[end].chunk == chunk {
			end++
		}
		n, err := s.writeChunk(s.chunks[chunk], pieces[first:end])
		written += n
		if err != nil {
			return written, fmt.Errorf("chunk %d: %w", chunk, err)
		}
		first = end
	}
	return written, nil
}

// cut returns the pieces of runs, sorted by their place.
func cut(runs []service.Run) []piece {
	pieces := make([]piece, 0, len(runs))
	for _, r := range runs {
		for from, end := 0, r.Backends.Len(); from < end; {
			at := r.First + uint32(from)
			n := min(end-from, int(ChunkSlots-at%ChunkSlots))
			pieces = append(pieces, piece{at / ChunkSlots, at % ChunkSlots, r.Backends, from, n})
			from += n
		}
	}
	slices.SortFunc(pieces, func(a, b piece) int {
		return cmp.Or(cmp.Compare(a.chunk, b.chunk), cmp.Compare(a.at, b.at))
	})
	return pieces
}

// add makes the chunks that pieces need, and then more with the lowest numbers, until there are as
// many as room slots take.
func (s *Slots) add(pieces []piece, room uint32) error {
	var missing []uint32
	for i, p := range pieces {
		if s.chunks[p.chunk] == nil && (i == 0 || pieces[i-1].chunk != p.chunk) {
			missing = append(missing, p.chunk)
		}
	}
	if len(missing) == 0 {
		return nil
	}

	needed := len(missing)
	want := int((uint64(room) + ChunkSlots - 1) / ChunkSlots)
	for number := range s.outer.MaxEntries() {
		if len(s.chunks)+len(missing) >= want {
			break
		}
		if s.chunks[number] == nil && !slices.Contains(missing[:needed], number) {
			missing = append(missing, number)
		}
	}
	for some := range slices.Chunk(missing, atOnce) {
		if err := s.grow(some); err != nil {
			return err
		}
	}
	for _, number := range missing[needed:] {
		s.unused[number] = true
	}
	return nil
}

// atOnce is the number of chunks that are looked up in the outer map, or put into it, at the same
// time.
const atOnce = 16

// grow makes chunks. The kernel waits for an RCU period with each chunk that is put into the outer
// map, so that they are put at the same time.
func (s *Slots) grow(numbers []uint32) error {
	if s.spec == nil {
		return errors.New("add chunks: the slots are open for reading")
	}
	errs := make([]error, len(numbers))
	made := make([]*ebpf.Map, len(numbers))
	var puts sync.WaitGroup
	for i, number := range numbers {
		puts.Go(func() {
			if made[i], errs[i] = ebpf.NewMap(s.spec.Copy()); errs[i] != nil {
				return
			}
			if err := s.outer.Put(number, made[i]); err != nil {
				made[i].Close()
				errs[i] = err
			}
		})
	}
	puts.Wait()

	s.mu.Lock()
	defer s.mu.Unlock()
	for i, number := range numbers {
		if errs[i] == nil {
			s.chunks[number] = made[i]
		} else {
			errs[i] = fmt.Errorf("add chunk %d of %d slots: %w", number, s.spec.MaxEntries, errs[i])
		}
	}
	return errors.Join(errs...)
}

// spareChunks is the number of unused chunks that stay. The kernel waits for an RCU period when a
// chunk is removed or added, which a large service that moves between chunks must not pay each time.
const spareChunks = 4

// Release notes chunks that have no run any more, and removes unused chunks beyond some. The caller
// calls it after the frontends of these runs are written.
func (s *Slots) Release(numbers []uint32) error {
	for _, number := range numbers {
		if s.chunks[number] != nil {
			s.unused[number] = true
		}
	}
	if len(s.unused) <= spareChunks {
		return nil
	}

	// The highest ones go: room is taken from the lowest slots first.
	gone := slices.Sorted(maps.Keys(s.unused))[spareChunks:]
	errs := make([]error, len(gone))
	var removals sync.WaitGroup
	for i, number := range gone {
		removals.Go(func() { errs[i] = s.outer.Delete(number) })
	}
	removals.Wait()

	// Programs may have used a chunk until its removal returned, which waits for them. Kernels
	// before 6.8 free a chunk too early without the reference that is closed here.
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, number := range gone {
		if errs[i] == nil {
			errs[i] = s.chunks[number].Close()
			delete(s.chunks, number)
			delete(s.unused, number)
		}
	}
	return errors.Join(errs...)
}

// writeChunk writes pieces of one chunk, sorted by their first slots, and returns the number of
// slots.
func (s *Slots) writeChunk(chunk *ebpf.Map, pieces []piece) (written int, err error) {
	first, end := pieces[0].at, uint32(0)
	for _, p := range pieces {
		end = max(end, p.end())
	}
	err = mapped(chunk, first, end, unix.PROT_READ|unix.PROT_WRITE, func(all []service.Backend) {
		for _, p := range pieces {
			written += p.run.Copy(all[p.at-first:p.end()-first], p.from)
		}
	})
	return written, err
}

// Read returns the first end slots, or all if there are fewer. Slots of missing chunks are zero.
func (s *Slots) Read(end uint64) ([]service.Backend, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	size := uint64(0)
	for number, chunk := range s.chunks {
		size = max(size, uint64(number)*ChunkSlots+uint64(chunk.MaxEntries()))
	}
	all := make([]service.Backend, min(end, size))
	for number, chunk := range s.chunks {
		first := uint64(number) * ChunkSlots
		if first >= uint64(len(all)) {
			continue
		}
		n := min(uint64(len(all))-first, uint64(chunk.MaxEntries()))
		if err := mapped(chunk, 0, uint32(n), unix.PROT_READ, func(in []service.Backend) {
			copy(all[first:], in)
		}); err != nil {
			return nil, fmt.Errorf("chunk %d: %w", number, err)
		}
	}
	return all, nil
}

// Run returns the slots from first up to end. The caller finds out whether they changed meanwhile.
// Slots beyond the table, or of missing chunks, are an error.
func (s *Slots) Run(first uint32, end uint64) ([]service.Backend, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var all []service.Backend
	for at := uint64(first); at < end; {
		chunk := s.chunks[uint32(at/ChunkSlots)]
		if chunk == nil {
			return nil, fmt.Errorf("slot %d has no chunk", at)
		}
		from := at % ChunkSlots
		n := min(end-at, ChunkSlots-from)
		if err := mapped(chunk, uint32(from), uint32(from+n), unix.PROT_READ,
			func(in []service.Backend) { all = append(all, in...) }); err != nil {
			return nil, err
		}
		at += n
	}
	return all, nil
}

// mapped calls fn with the slots of a chunk from first up to end. fn must not keep them.
func mapped(chunk *ebpf.Map, first, end uint32, prot int, fn func([]service.Backend)) error {
	if end > chunk.MaxEntries() {
		return fmt.Errorf("slot %d of %d: %w", end-1, chunk.MaxEntries(), unix.E2BIG)
	}
	from := int(first) * backendSize
	page := from &^ (unix.Getpagesize() - 1)
	memory, err := unix.Mmap(chunk.FD(), int64(page), int(end)*backendSize-page, prot,
		unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	fn(unsafe.Slice((*service.Backend)(unsafe.Pointer(&memory[from-page])), end-first))
	return unix.Munmap(memory)
}
