package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/guard/sample"
)

// Sentinels for callers. Each is wrapped in a message with a remedy.
var (
	// ErrNotPermitted matches when the process may not use BPF.
	ErrNotPermitted = bpfobj.ErrNotPermitted
	// ErrNotSupported matches when the kernel lacks a feature.
	ErrNotSupported = bpfobj.ErrNotSupported
	// ErrNoBPFFS matches when the directory for pins is not on a bpffs.
	ErrNoBPFFS = bpfobj.ErrNoBPFFS
)

// Settings are the addresses and links that the guard protects.
type Settings = chains.Settings

// Datagrams sets which sources of tunnel datagrams are accepted.
type Datagrams = chains.Datagrams

// Guard holds the pinned maps and programs of one node. Its methods may be called concurrently;
// they work on the network namespace of the calling thread.
type Guard struct {
	dir   string
	log   *slog.Logger
	maps  map[string]*ebpf.Map     // by pin
	progs map[string]*ebpf.Program // by pin
	ids   map[ebpf.ProgramID]string
	hooks hooks

	// unsampled reports whether the kernel cannot sample drops.
	unsampled bool

	mu       sync.Mutex // held while the kernel is changed
	settings *Settings  // last given to Apply
	// unguarded maps the indexes of links to what is wrong with their programs.
	unguarded map[int]string
}

// Open loads the programs and maps and pins them in dir, which must be on a mounted bpffs. It makes
// dir and its parents there, and mounts nothing. Pinned maps are adopted with their content; pinned
// programs only if they are the same. Another version's pins are replaced. Its programs stay
// attached to links until Apply has attached the new ones.
func Open(dir string, log *slog.Logger) (*Guard, error) {
	if err := bpfobj.MakeDir(dir); err != nil {
		return nil, err
	}
	hooks, err := probeHooks()
	if err != nil {
		return nil, fmt.Errorf("open guard: %w", err)
	}
	all, err := specs()
	if err != nil {
		return nil, fmt.Errorf("open guard: %w", err)
	}
	g, err := openWith(dir, log, hooks, all)
	if err != nil {
		return nil, err
	}
	if err := chains.SampleProbe().Try(); err != nil {
		g.unsampled = true
		log.Warn("the kernel cannot sample dropped packets, so they are only counted; load the "+
			"modules nft_log and nfnetlink_log", "error", err)
	}
	return g, nil
}

// openWith opens a guard of these programs in an existing directory.
func openWith(dir string, log *slog.Logger, hooks hooks,
	all []*ebpf.CollectionSpec) (*Guard, error) {
	g := &Guard{dir: dir, log: log, hooks: hooks, unguarded: make(map[int]string)}
	if err := g.load(all); err != nil {
		g.Close()
		return nil, fmt.Errorf("open guard in %s: %w", dir, err)
	}
	return g, nil
}

// Close releases the guard's file descriptors; the guard stays in force.
func (g *Guard) Close() error {
	var errs []error
	for _, m := range g.maps {
		errs = append(errs, m.Close())
	}
	for _, p := range g.progs {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Apply makes the kernel match s and returns what it changed. It does as much as it can: after an
// error everything else is in force. Unguarded reports a problem of one link; Apply returns no
// error for it. A link that disappears meanwhile is ignored.
func (g *Guard) Apply(s Settings) ([]Op, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	s.Unsampled = g.unsampled
	g.settings = &s
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	have, err := g.read(h)
	if err != nil {
		return nil, err
	}

	want := Plan(s, have.Links)
	s.Keep(want.Table, have.Table)
	done, odd, err := g.do(h, Diff(have, want))
	g.unguarded = unguarded(have.Links, odd)
	return done, err
}

// Unguarded returns a sentence about each link that lacks its programs, or has one too many, after
// the last Apply or Watch. On such a link only the nftables table drops.
func (g *Guard) Unguarded() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Values(g.unguarded))
}

// unguarded returns the sentences about links that could not be read or changed.
func unguarded(links []Link, odd map[int]error) map[int]string {
	sentences := make(map[int]string)
	for _, l := range links {
		if err := errors.Join(l.Err, odd[l.Index]); err != nil {
			sentences[l.Index] = fmt.Sprintf("link %s has no guard of its own: %v", l.Name, err)
		}
	}
	return sentences
}

// Read reads the kernel's state.
func (g *Guard) Read() (*State, error) {
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return g.read(h)
}

// do performs ops in order and returns those performed. odd holds the problems of links, by index;
// err joins all others.
func (g *Guard) do(h *nl.Handle, ops []Op) (done []Op, odd map[int]error, err error) {
	var errs []error
	odd = make(map[int]error)
	failed := make(map[any]bool)
	for _, op := range ops {
		if failed[op.scope] {
			continue
		}
		err := op.do(g, h)
		switch {
		case errors.Is(err, tchook.ErrLinkGone):
			op.fail(failed)
		case err != nil:
			op.fail(failed)
			err = fmt.Errorf("%s: %w", op, err)
			if index, of := op.link(); of {
				odd[index] = errors.Join(odd[index], err)
			} else {
				errs = append(errs, err)
			}
		default:
			done = append(done, op)
			g.log.Info("guard changed", "op", op.String())
		}
	}
	return done, odd, errors.Join(errs...)
}

// Samples returns the ring of samples. The guard closes its maps.
func (g *Guard) Samples() sample.Ring {
	return sample.Ring{Samples: g.maps[abi.PinSamples], Limits: g.maps[abi.PinLimits]}
}

// Counters returns the packets dropped since the guard was first loaded, by the name of every
// reason.
func (g *Guard) Counters() (map[string]uint64, error) {
	sums, err := nft.Counters(chains.TableNames...) // no reason is counted in both
	if err != nil {
		return nil, err
	}
	for _, r := range bpf.Reasons {
		perCPU, err := readCounter(g.maps, r.Number)
		if err != nil {
			return nil, fmt.Errorf("read counter %s: %w", r.Name, err)
		}
		sums[r.Name] += 0 // every reason is there
		for _, n := range perCPU {
			sums[r.Name] += n
		}
	}
	return sums, nil
}
