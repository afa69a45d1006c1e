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

// Errors that callers distinguish. The text of an error that wraps one of them has a remedy.
var (
	// ErrNotPermitted means that the process may not use BPF.
	ErrNotPermitted = bpfobj.ErrNotPermitted
	// ErrNotSupported means that the kernel lacks a feature.
	ErrNotSupported = bpfobj.ErrNotSupported
	// ErrNoBPFFS means that the directory for pins is not on a bpffs.
	ErrNoBPFFS = bpfobj.ErrNoBPFFS
)

// Settings are the addresses and links that the guard protects.
type Settings = chains.Settings

// Datagrams sets which sources of tunnel datagrams are accepted.
type Datagrams = chains.Datagrams

// Site is another cluster, in Settings.
type Site = chains.Site

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
	settings *Settings  // last given to Apply or Update
	// inForce is settings if the kernel matched them after the last Apply or Update, else nil.
	inForce *Settings
	// unguarded holds a sentence about each link whose programs are wrong, by the index of the
	// link.
	unguarded map[int]string
}

// Open loads the programs and maps and pins them in dir, which must be on a mounted bpffs. It
// creates dir if needed, and mounts no file system. It adopts pinned maps with their content, and
// pinned programs that are identical. It replaces the pins of another version, whose programs stay
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

// openWith is Open with the programs all, for a directory that exists.
func openWith(dir string, log *slog.Logger, hooks hooks,
	all []*ebpf.CollectionSpec) (*Guard, error) {
	g := &Guard{dir: dir, log: log, hooks: hooks, unguarded: make(map[int]string)}
	if err := g.load(all); err != nil {
		g.Close()
		return nil, fmt.Errorf("open guard in %s: %w", dir, err)
	}
	return g, nil
}

// Close closes the file descriptors of the guard. The guard stays in force.
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

// Apply makes the kernel match s and returns the changes that it made. After an error it continues
// with the other changes. For a problem of a single link it returns no error: Unguarded reports it.
// A link that disappears during Apply is ignored.
func (g *Guard) Apply(s Settings) ([]Op, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.applyLocked(s)
}

func (g *Guard) applyLocked(s Settings) ([]Op, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s.Unsampled = g.unsampled
	g.settings, g.inForce = &s, nil
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
	if err == nil {
		g.inForce = &s
	}
	return done, err
}

// Unguarded returns a sentence about each link whose programs could not be read or changed by the
// last Apply or Watch. On such a link, perhaps only the nftables table drops packets.
func (g *Guard) Unguarded() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Values(g.unguarded))
}

// unguarded returns a sentence about each link that has Err set or an error in odd, by index.
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
func (g *Guard) Read() (*Kernel, error) {
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return g.read(h)
}

// said bounds the changes that one call of do logs, and the errors that it joins. A tenant can
// change thousands of addresses of services at once.
const said = 16

// do performs ops in order and returns those that succeeded. odd holds the errors that concern one
// link, by the index of the link. err joins all other errors.
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
			if done = append(done, op); len(done) <= said {
				g.log.Info("guard changed", "op", op.String())
			}
		}
	}

	if n := len(done) - said; n > 0 {
		g.log.Info("guard changed", "more", n)
	}
	if n := len(errs) - said; n > 0 {
		errs = append(errs[:said], fmt.Errorf("and %d more errors", n))
	}
	return done, odd, errors.Join(errs...)
}

// Samples returns the ring of samples. Its maps belong to the guard, whose Close closes them.
func (g *Guard) Samples() sample.Ring {
	return sample.Ring{Samples: g.maps[abi.PinSamples], Limits: g.maps[abi.PinLimits]}
}

// Counters returns the number of dropped packets since the guard was first loaded, for every
// reason, by the name of the reason.
func (g *Guard) Counters() (map[string]uint64, error) {
	sums, err := nft.Counters(chains.TableNames...) // each reason has a counter in one table only
	if err != nil {
		return nil, err
	}
	for _, r := range bpf.Reasons {
		perCPU, err := readCounter(g.maps, r.Number)
		if err != nil {
			return nil, fmt.Errorf("read counter %s: %w", r.Name, err)
		}
		sums[r.Name] += 0 // so that the result has every reason
		for _, n := range perCPU {
			sums[r.Name] += n
		}
	}
	return sums, nil
}
