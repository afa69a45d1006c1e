package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/peer"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/service"
)

const (
	fillServices  = 10000
	fillEndpoints = 100000
	// oursChanges and theirChanges are the numbers of endpoints that are changed in a round, one
	// after the other, with Kubeveil's table and with kube-proxy.
	oursChanges  = 300
	theirChanges = 20
	fillRounds   = 3

	caseRead   = "programming_read_list"
	caseFill   = "programming_list"
	caseEntry  = "programming_entry"
	caseChange = "programming_change"
	suffixP99  = "_p99"
	toNFTables = "_to_nftables"
)

// programming measures how fast Kubeveil's table and the rules of kube-proxy are written. If
// kube-proxy exceeds its limit, the report has a note instead of its figures.
func (s *run) programming(ctx context.Context) error {
	plan := manyServices(fillServices, fillEndpoints/fillServices)
	var ours, theirs []filled
	late := false
	for round := range min(fillRounds, s.Rounds) {
		o, err := s.fillOurs(ctx, round, plan)
		if err != nil {
			return err
		}
		ours = append(ours, o)
		s.Progress("round %d  list: ours %.0f ms, %.0f ms of it after it was decoded (%.2f µs an "+
			"entry of a map); one endpoint, p99: %.2f ms", round+1, o.read, o.list, o.entry,
			bench.Quantile(o.changes, 0.99))
		if late {
			continue
		}

		t, err := s.fillTheirs(ctx, round, plan)
		if late = errors.Is(err, peer.ErrLate); late {
			s.leftOut("programming of nftables", err)
			continue
		}
		if err != nil {
			return err
		}
		theirs = append(theirs, t)
		s.Progress("round %d  list: nftables %.0f ms; one endpoint, p99: %.1f ms", round+1, t.read,
			bench.Quantile(t.changes, 0.99))
	}
	return s.programmed(ours, theirs)
}

// programmed adds the cases. They compare ours with theirs if both have the same number of rounds;
// otherwise they have only our figures.
func (s *run) programmed(ours, theirs []filled) error {
	for _, c := range []struct {
		name   string
		unit   bench.Unit
		beside bool
		value  func(filled) float64
	}{
		{caseRead + toNFTables, bench.Millisecond, true, func(f filled) float64 { return f.read }},
		{caseFill, bench.Millisecond, false, func(f filled) float64 { return f.list }},
		{caseEntry, bench.Microsecond, false, func(f filled) float64 { return f.entry }},
		{caseChange + toNFTables, bench.Millisecond, true,
			func(f filled) float64 { return bench.Quantile(f.changes, 0.5) }},
		{caseChange + suffixP99 + toNFTables, bench.Millisecond, true,
			func(f filled) float64 { return bench.Quantile(f.changes, 0.99) }},
	} {
		var own, base []float64
		for _, f := range ours {
			own = append(own, c.value(f))
		}

		if !c.beside || len(theirs) < len(ours) {
			s.Add(c.name, "", c.unit, own...)
			continue
		}
		for _, f := range theirs {
			base = append(base, c.value(f))
		}
		if err := s.Compare(c.name, "", c.unit, own, base, sideNFTables); err != nil {
			return err
		}
	}
	return nil
}

// manyServices returns n services. each is the number of endpoints per service.
func manyServices(n, each int) []peer.Object {
	out := make([]peer.Object, n)
	for i := range out {
		var backends []netip.Addr
		for e := range each {
			backends = append(backends, backend((i*each+e)%maxBackends))
		}
		out[i] = object(fmt.Sprintf("s%d", i), "p80", 80, virtualAddr(i), backends...)
	}
	return out
}

// filled holds the times for writing a table. kube-proxy has only read and changes.
type filled struct {
	// read is the time from the request for the lists until the table is written, in milliseconds.
	// list is the part of it after the lists are decoded. entry is in microseconds per entry.
	read, list, entry float64
	// changes holds the time of each change of an endpoint, in milliseconds.
	changes []float64
}

// fillOurs fills a new table by veild's client and keeper, and then changes endpoints one after the
// other.
func (s *run) fillOurs(ctx context.Context, round int,
	plan []peer.Object) (f filled, err error) {
	dir, config := s.folder(fmt.Sprintf("programming%d", round))
	w, err := newWatched(ctx, dir, config, plan)
	defer func() { err = errors.Join(err, w.close(dir)) }()
	if err != nil {
		return f, err
	}

	var took time.Duration
	entries := 0
	for fronts := 0; fronts < len(plan); {
		wr, err := w.next(ctx)
		if err != nil {
			return f, err
		}
		fronts, entries, took = fronts+wr.Frontends, entries+wr.Entries, took+wr.Took
		f.read = bench.Millis(wr.At.Sub(w.feed.Began()))
		f.list = bench.Millis(wr.At.Sub(w.node.Listed()))
	}

	f.entry = bench.Micros(took) / float64(entries)
	if err := w.node.Problems(ctx); err != nil {
		return f, err
	}

	// Changes come at the rate of a large cluster. With longer pauses, the CPU would sleep and wake
	// up late.
	tick := time.NewTicker(changePause)
	defer tick.Stop()

	for i := range oursChanges {
		slice := changed(plan[i*len(plan)/oursChanges], i)
		<-tick.C
		sent, err := w.feed.Change(ctx, slice)
		if err != nil {
			return f, err
		}
		wr, err := w.next(ctx)
		if err != nil {
			return f, err
		}
		f.changes = append(f.changes, bench.Millis(wr.At.Sub(sent)))
	}

	return f, w.node.Problems(ctx)
}

// changePause is the time between two changes.
const changePause = 5 * time.Millisecond

// changed returns the slice of a service with another address of the first endpoint.
func changed(o peer.Object, i int) service.Slice {
	slice := o.Slice
	list := slices.Collect(slice.Endpoints.All())
	list[0].Addr = backend((i + 7) % maxBackends)
	slice.Endpoints = service.EndpointsOf(list...)
	return slice
}

// fillTheirs does the same as fillOurs with kube-proxy, in a new namespace.
func (s *run) fillTheirs(ctx context.Context, round int,
	plan []peer.Object) (f filled, err error) {
	space, err := suite.NewSpace("node of programming")
	if space != nil {
		defer space.Close()
	}
	if err != nil {
		return f, err
	}
	p, err := s.ground.proxyOf(sideNFTables, nodeAddr(0),
		filepath.Join(s.ground.dir, fmt.Sprintf("programming%d-kube-proxy", round))).Start(ctx,
		space, plan)
	if err != nil {
		return f, err
	}
	defer p.Close()

	f.read = bench.Millis(p.Took)
	for i := range theirChanges {
		took, err := p.Change(ctx, changed(plan[i*len(plan)/theirChanges], i))
		if err != nil {
			return f, err
		}
		f.changes = append(f.changes, bench.Millis(took))
	}
	return f, nil
}
