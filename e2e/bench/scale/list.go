package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const (
	partList, partUDP, partIPv6, partWhole = "list", "udp", "ipv6", "whole"
	partServer, partWrite                  = "server", "write"
	// Kinds of endpoints: all of TCP, every other service of UDP, all of IPv6, all of one service.
	kindTCP, kindUDP, kindIPv6, kindWhole = "tcp", "udp", "ipv6", "whole"
	// sideOurs and sideLoop are the sides of lists. toLoop marks the cases that compare them.
	sideOurs, sideLoop = "ours", "loop"
	toLoop             = "_to_loop"
	// With a real API server, a node lists, or a client drops what it reads.
	sideServed, sideDrop = "served", "drop"
	toDrop               = "_to_drop"
	// A node follows the API server during writes, or nothing watches.
	sideFollow, sideAlone = "follow", "alone"
	toAlone               = "_to_alone"
)

// Suffixes of the further quantities of a list.
const (
	suffixProcessor = "_processor"
	suffixUsable    = "_usable"
	suffixPeak      = "_peak"
	suffixHeap      = "_heap"
	suffixMaps      = "_maps"
	suffixEmpty     = "_empty_maps"
	suffixChange    = "_change"
	suffixMost      = "_change_99th"
	suffixAmid      = "_amid_99th"
	suffixSettled   = "_settled"
	suffixWritten   = "_written"
	suffixServer    = "_server_processor"
	suffixEtcd      = "_etcd_processor"
	suffixWriter    = "_writer_processor"
)

// caseList returns the name of the case of a list of n endpoints of TCP.
func caseList(n int) string { return fmt.Sprintf("%s_%d", partList, n) }

// caseOf returns the name of the case of a list of n endpoints of another kind.
func caseOf(kind string, n int) string { return fmt.Sprintf("%s_%d", kind, n) }

// extras are the further quantities of a measurement. The loop has only the first.
var extras = []bench.Extra{
	{Suffix: suffixProcessor, Unit: bench.Millisecond}, {Suffix: suffixUsable, Unit: bench.Millisecond},
	{Suffix: suffixPeak, Unit: bench.MiB}, {Suffix: suffixHeap, Unit: bench.MiB},
	{Suffix: suffixMaps, Unit: bench.MiB}, {Suffix: suffixEmpty, Unit: bench.MiB},
	{Suffix: suffixChange, Unit: bench.Millisecond}, {Suffix: suffixMost, Unit: bench.Millisecond},
	{Suffix: suffixAmid, Unit: bench.Millisecond}, {Suffix: suffixSettled, Unit: bench.Millisecond},
	{Suffix: suffixWritten, Unit: bench.Millisecond}, {Suffix: suffixServer, Unit: bench.Millisecond},
	{Suffix: suffixEtcd, Unit: bench.Millisecond}, {Suffix: suffixWriter, Unit: bench.Millisecond},
}

// figures is the result of one measurement of a side. Times are in milliseconds, sizes in MiB. Zero
// means that it was not measured.
type figures struct {
	// Wall is the time from the request to the last write, Processor the CPU time meanwhile. Usable
	// is the part of Wall after the last object was decoded.
	Wall, Processor, Usable float64
	// Peak is the peak of resident memory, Heap the heap after a collection, and Maps the kernel's
	// memory of all maps. Empty is that memory before the list.
	Peak, Heap, Maps, Empty float64
	// Change is the time of one changed endpoint beside the list, from the decoded slice to the
	// written frontend. ChangeMost is its 99th percentile, and Amid the same during a storm.
	Change, ChangeMost, Amid float64
	// Settled is the time from the last event of the storm to the last write.
	Settled float64
	// Written is the part of Wall until the last answer to the writer. Server, Etcd and Writer are
	// the CPU times of these processes.
	Written, Server, Etcd, Writer float64
	// Last is the time of the last write to the table.
	Last time.Time
}

// sample returns the figures as a sample of the wall time.
func (f figures) sample() bench.Sample {
	return bench.Sample{Value: f.Wall, Extras: map[string]float64{
		suffixProcessor: f.Processor, suffixUsable: f.Usable, suffixPeak: f.Peak,
		suffixHeap: f.Heap, suffixMaps: f.Maps, suffixEmpty: f.Empty, suffixChange: f.Change,
		suffixMost: f.ChangeMost, suffixAmid: f.Amid, suffixSettled: f.Settled,
		suffixWritten: f.Written, suffixServer: f.Server, suffixEtcd: f.Etcd, suffixWriter: f.Writer}}
}

// list measures lists of all sizes.
func (s *run) list(ctx context.Context) error {
	for _, n := range s.Sizes {
		if err := s.listOf(ctx, n); err != nil {
			return fmt.Errorf("%d endpoints: %w", n, err)
		}
	}
	return nil
}

// udp, ipv6 and whole measure our side alone, with lists of other kinds and the largest size. One
// service has 100,000 endpoints at most.
func (s *run) udp(ctx context.Context) error  { return s.kindOf(ctx, kindUDP, s.largest()) }
func (s *run) ipv6(ctx context.Context) error { return s.kindOf(ctx, kindIPv6, s.largest()) }

func (s *run) whole(ctx context.Context) error {
	return s.kindOf(ctx, kindWhole, min(s.largest(), wholeSize))
}

// wholeSize is the number of endpoints of one service for which gates.json has a limit.
const wholeSize = 100_000

// largest returns the largest chosen size.
func (s *run) largest() int { return slices.Max(s.Sizes) }

func (s *run) kindOf(ctx context.Context, kind string, n int) error {
	config := filepath.Join(s.dir, caseOf(kind, n)+".kubeconfig")
	feed, err := s.feed(ctx, kind, n, config)
	if err != nil {
		return err
	}
	defer feed.Close()

	name := caseOf(kind, n)
	s.labelCase(name, fmt.Sprintf("%d endpoints listed and programmed, %s", n, kindTexts[kind]))
	return s.Interleave(ctx, []bench.Group{{Name: name, Unit: bench.Millisecond, Extras: extras,
		Pairs: []bench.Pair{{Name: name, Ours: sideOurs}},
		Sides: []bench.Side{{Name: sideOurs, Measure: func(ctx context.Context) (bench.Sample, error) {
			return s.measure(ctx, sideOurs, kind, n, config)
		}}}}})
}

// listOf measures lists of n endpoints.
func (s *run) listOf(ctx context.Context, n int) error {
	config := filepath.Join(s.dir, fmt.Sprintf("%d.kubeconfig", n))
	feed, err := s.feed(ctx, kindTCP, n, config)
	if err != nil {
		return err
	}
	defer feed.Close()

	g := bench.Group{Name: caseList(n), Unit: bench.Millisecond, Extras: extras,
		Pairs: []bench.Pair{{Name: caseList(n) + toLoop, Ours: sideOurs, Base: sideLoop},
			{Name: caseList(n), Ours: sideOurs}}}
	for _, side := range []string{sideOurs, sideLoop} {
		g.Sides = append(g.Sides, bench.Side{Name: side,
			Measure: func(ctx context.Context) (bench.Sample, error) {
				return s.measure(ctx, side, kindTCP, n, config)
			}})
	}
	s.label(n)
	return s.Interleave(ctx, []bench.Group{g})
}

// feed starts the feed of n endpoints of a kind in another process. It returns when everything is
// encoded and the feed listens.
func (s *run) feed(ctx context.Context, kind string, n int,
	config string) (*suite.Daemon, error) {
	began := time.Now()
	d, err := s.space.Start(ctx, suite.Program{
		Argv: s.self.Argv(verbFeed, kind, strconv.Itoa(n), config, "")})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, feedLimit, errors.New("it is not ready"))
	defer cancel()
	err = d.Await(ctx, 20*time.Millisecond, func() (bool, error) {
		_, err := os.Stat(config)
		return err == nil, nil
	})
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("feed: %w: %s", err, d.Output())
	}
	s.Progress("%d endpoints are encoded after %.1f s", n, time.Since(began).Seconds())
	return d, nil
}

// feedLimit bounds the wait for a feed, and sideLimit one measurement.
const feedLimit, sideLimit = 5 * time.Minute, 5 * time.Minute

// profile returns the path of the next profile of a side, or "".
func (s *run) profile(side string, n int) string {
	if s.Profile == "" || side != sideOurs && side != sideServed {
		return ""
	}
	s.profiles++
	return filepath.Join(s.Profile, fmt.Sprintf("%d-%d.pprof", n, s.profiles))
}

// measure measures a side once, in a new process.
func (s *run) measure(ctx context.Context, side, kind string, n int,
	config string) (bench.Sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, sideLimit, errors.New("it did not end"))
	defer cancel()
	argv := s.self.Argv(side, kind, strconv.Itoa(n), config, s.profile(side, n))
	out, err := suite.Output(s.space.Command(ctx, nil, argv[0], argv[1:]...))
	if err != nil {
		return bench.Sample{}, err
	}
	var f figures
	if err := json.Unmarshal(out, &f); err != nil {
		return bench.Sample{}, fmt.Errorf("figures %q: %w", out, err)
	}
	return f.sample(), nil
}
