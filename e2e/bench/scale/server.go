package scale

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// server measures our side with a real API server, beside a client that reads the same list and
// drops it.
func (s *run) server(ctx context.Context) (err error) {
	p, err := s.plane(ctx)
	if err != nil {
		return err
	}
	n := s.largest()
	requests, err := slicesOf(shapeOf(kindTCP, n))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.clear(ctx)) }()
	if err := p.writer.Send(ctx, requests); err != nil {
		return err
	}
	// kube-apiserver encodes each object for its first reader, and keeps that for the others.
	if _, err := p.measure(ctx, sideDrop, n, ""); err != nil {
		return err
	}

	name := caseOf(partServer, n)
	g := bench.Group{Name: name, Unit: bench.Millisecond, Extras: extras,
		Pairs: []bench.Pair{{Name: name + toDrop, Ours: sideServed, Base: sideDrop},
			{Name: name, Ours: sideServed}}}
	for _, side := range []string{sideServed, sideDrop} {
		g.Sides = append(g.Sides, bench.Side{Name: side,
			Measure: func(ctx context.Context) (bench.Sample, error) {
				f, err := p.measure(ctx, side, n, s.profile(side, n))
				return f.sample(), err
			}})
	}
	what := fmt.Sprintf("%d endpoints listed from a real API server and programmed", n)
	s.labelCase(name, what)
	s.labelCase(name+toDrop, what)
	return s.Interleave(ctx, []bench.Group{g})
}

// drop lists the kinds of services as our side does, and drops what it reads: from the request to
// the end of both lists.
func drop(ctx context.Context, config string) (f figures, err error) {
	client, host, err := clientOf(config)
	if err != nil {
		return f, err
	}
	began, before := time.Now(), load.OwnCPU()
	both, ctx := errgroup.WithContext(ctx)
	for _, k := range []object.Kind{object.Services, object.EndpointSlices} {
		both.Go(func() error { return dropList(ctx, client, host, k) })
	}
	err = both.Wait()
	f.Wall, f.Processor = bench.Millis(time.Since(began)), bench.Millis(load.OwnCPU()-before)
	return f, err
}

// dropList reads a streaming list until the bookmark at its end.
func dropList(ctx context.Context, client *http.Client, host string, k object.Kind) error {
	query := url.Values{"watch": {"true"}, "sendInitialEvents": {"true"},
		"resourceVersionMatch": {string(metav1.ResourceVersionMatchNotOlderThan)},
		"allowWatchBookmarks":  {"true"}, "labelSelector": {k.Labels}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		host+k.Path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", runtime.ContentTypeProtobuf)
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", k.Path, answer.Status)
	}

	// A frame has the size and a WatchEvent, whose first field is its type.
	bookmark, failure := []byte("\n\bBOOKMARK"), []byte("\n\x05ERROR")
	r := bufio.NewReaderSize(answer.Body, 64<<10)
	for {
		head, err := r.Peek(4 + len(bookmark))
		if err != nil {
			return err
		}
		if bytes.Equal(head[4:], bookmark) {
			return nil
		}
		if bytes.Equal(head[4:4+len(failure)], failure) {
			return fmt.Errorf("%s: the list ended with an error", k.Path)
		}
		if _, err := r.Discard(4 + int(binary.BigEndian.Uint32(head))); err != nil {
			return err
		}
	}
}
