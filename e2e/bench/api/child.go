package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/bench/api/server"
	"github.com/kubeveil/kubeveil/e2e/bench/api/testbed"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Child reports whether Run started this process as a server, proxy or client of the benchmark. If
// so, Child runs it and returns its exit status. In any other process it does nothing. A program
// that calls Run must call Child first.
func Child() (status int, is bool) { return suite.Child(Suite, child) }

// child runs the program that the first argument names. serve is an API server. copy and
// impersonate are proxies. load, hold, fresh and fleet are clients. probe runs veild's probers.
func child(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) >= 4 && args[0] == "serve":
		return server.Serve(ctx, args[1], args[2], args[3:]...)
	case len(args) == 2 && args[0] == "copy":
		return server.CopyTCP(ctx, args[1], testbed.Servers())
	case len(args) == 3 && args[0] == "impersonate":
		return server.Impersonate(ctx, args[1], args[2], testbed.Servers())
	case len(args) == 3 && args[0] == "hold":
		return client.Hold(ctx, args[1], args[2], out)
	case len(args) == 3 && args[0] == "fresh":
		return client.Fresh(ctx, args[1], args[2], out)
	case len(args) == 4 && args[0] == "fleet":
		return withNumber(args[3], func(n int) error {
			return client.Fleet(ctx, args[1], args[2],
				n, out)
		})
	case len(args) == 3 && args[0] == "probe":
		return withNumber(args[2], func(n int) error { return client.Probe(ctx, args[1], n, out) })

	case len(args) == 2 && args[0] == "load":
		var l client.Load
		if err := json.Unmarshal([]byte(args[1]), &l); err != nil {
			return err
		}
		o, err := l.Run(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(o)
	}
	return fmt.Errorf("%q: want serve, copy, impersonate, hold, fresh, fleet, probe or load", args)
}

// withNumber parses text as a number of clients and calls fn with it.
func withNumber(text string, fn func(n int) error) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	return fn(n)
}
