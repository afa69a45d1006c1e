package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/rules"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const (
	fillServices  = 10000
	fillEndpoints = 100000
	// oursChanges and theirChanges are how many endpoints are changed in a round, one after the
	// other.
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

// programming measures how fast tables are written: ours, and beside it the same rules by nft(8).
func (s *run) programming(ctx context.Context) error {
	plan := manyServices(fillServices, fillEndpoints/fillServices)
	l, err := s.ground.newLane(ctx, "programming", size{fillServices, fillEndpoints / fillServices})
	if err != nil {
		return err
	}

	var read, fill, entry, change, change99, theirFill, theirChange, theirChange99 []float64
	for round := range min(fillRounds, s.Rounds) {
		o, err := s.fillOurs(ctx, round, plan)
		if err != nil {
			return err
		}
		t, err := fillTheirs(ctx, l, plan)
		if err != nil {
			return err
		}
		s.Progress("round %d  list: ours %.0f ms, %.0f ms of it after it was decoded (%.2f µs an "+
			"entry of a map), nftables %.0f ms; one endpoint, p99: ours %.2f ms, nftables %.1f ms",
			round+1, o.read, o.list, o.entry, t.list, quantile99(o.changes), quantile99(t.changes))
		read, fill, entry, theirFill = append(read, o.read), append(fill, o.list),
			append(entry, o.entry), append(theirFill, t.list)
		change, theirChange = append(change, bench.Quantile(o.changes, 0.5)),
			append(theirChange, bench.Quantile(t.changes, 0.5))
		change99, theirChange99 = append(change99, quantile99(o.changes)),
			append(theirChange99, quantile99(t.changes))
	}

	s.Add(caseRead, "", bench.Millisecond, read...)
	s.Add(caseEntry, "", bench.Microsecond, entry...)
	for _, c := range []struct {
		name       string
		ours, base []float64
	}{{caseFill, fill, theirFill}, {caseChange, change, theirChange},
		{caseChange + suffixP99, change99, theirChange99}} {
		if err := s.Compare(c.name+toNFTables, "", bench.Millisecond, c.ours, c.base,
			sideNFTables); err != nil {
			return err
		}
	}

	return nil
}

// manyServices are services with as many endpoints each.
func manyServices(n, each int) []rules.Service {
	out := make([]rules.Service, n)
	for i := range out {
		out[i] = rules.Service{Namespace: "bench", Name: fmt.Sprintf("s%d", i), Port: "p80",
			Number: 80, Target: 80, ClusterIP: virtualAddr(i)}
		for e := range each {
			out[i].Backends = append(out[i].Backends, backend((i*each+e)%maxBackends))
		}
	}
	return out
}

// filled holds the times for writing a table, in milliseconds, and microseconds per entry. Read
// counts from the request for the lists, list from the end of their decoding.
type filled struct {
	read, list, entry float64
	changes           []float64
}

// fillOurs has a new table kept by what keeps it in veild, from the lists on, and changes an
// endpoint after another.
func (s *run) fillOurs(ctx context.Context, round int,
	plan []rules.Service) (f filled, err error) {
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
		fronts, entries, took = fronts+wr.fronts, entries+wr.entries, took+wr.took
		f.read, f.list = millis(wr.at.Sub(w.began)), millis(wr.at.Sub(w.listed))
	}

	f.entry = micros(took) / float64(entries)
	if err := w.problems(ctx); err != nil {
		return f, err
	}

	// As fast as a large cluster changes, and not as fast as it goes: a processor that sleeps wakes
	// late.
	tick := time.NewTicker(changePause)
	defer tick.Stop()

	for i := range oursChanges {
		event, err := changeEvent(changed(plan[i*len(plan)/oursChanges], i), feedVersion+1+i)
		if err != nil {
			return f, err
		}
		<-tick.C
		start := time.Now()
		if err := w.feed.send(ctx, event); err != nil {
			return f, err
		}
		wr, err := w.next(ctx)
		if err != nil {
			return f, err
		}
		f.changes = append(f.changes, millis(wr.at.Sub(start)))
	}

	return f, w.problems(ctx)
}

// changePause is between two changes.
const changePause = 5 * time.Millisecond

// changed is a service with another first endpoint.
func changed(s rules.Service, i int) rules.Service {
	s.Backends = slices.Clone(s.Backends)
	s.Backends[0] = backend((i + 7) % maxBackends)
	return s
}

// fillTheirs does the same by nft(8), in one transaction each time, as kube-proxy does.
func fillTheirs(ctx context.Context, l *lane, plan []rules.Service) (f filled, err error) {
	nft := func(b *bytes.Buffer) (float64, error) {
		cmd := l.node.Command(ctx, nil, "nft", "-f", "-")
		cmd.Stdin = b
		start := time.Now()
		_, err := suite.Output(cmd)
		return millis(time.Since(start)), err
	}
	var b bytes.Buffer
	if err := rules.NFTables(&b, rulesNode(l.number), plan); err != nil {
		return f, err
	}
	if f.list, err = nft(&b); err != nil {
		return f, err
	}

	for i := range theirChanges {
		var b bytes.Buffer
		if err := rules.NFTablesChange(&b, changed(plan[i*len(plan)/theirChanges], i)); err != nil {
			return f, err
		}
		took, err := nft(&b)
		if err != nil {
			return f, err
		}
		f.changes = append(f.changes, took)
	}

	return f, nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func quantile99(values []float64) float64 { return bench.Quantile(values, 0.99) }
